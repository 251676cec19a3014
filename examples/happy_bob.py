"""One word in several contexts, "I am happy" and "I am Bob" (Yun et al., Section 5.2)."""

# %% [markdown]
# A token is a word: the cell of [0, 1) that its number names. The word "I" occurs in every
# sentence, and a contextual mapping gives it another number in each (Definition 5.1). Three
# maps: the mean of all words beside the word itself, the selective shifts of Theorem 3, and
# a network that has memorised what every word of every sentence is to become.

# %%
import numpy as np

import everyformer as ef

WORDS = ("I", "am", "was", "Bob", "happy")
SENTENCES = ("I am happy", "I am Bob", "I was Bob", "I was happy")
K = 8

numbers = np.array([[WORDS.index(word) for word in text.split()] for text in SENTENCES])
tokens = numbers[..., None].astype(float)

# %% [markdown]
# What words are to become: 10 times the number of the sentence, and their place in it.

# %%
wanted = 10 * np.arange(1, 5)[:, None] + np.arange(1, 4)


def averaged(x: np.ndarray) -> np.ndarray:
    """The word, and 300 times the mean of its sentence, in one number."""
    return x[..., 0] + 100 * x.sum(axis=1)


def shifted(x: np.ndarray) -> np.ndarray:
    """The ids of the network of Theorem 3, after its attention layers."""
    target = ef.Target(lambda x: x, seq_len=3, d_model=1)
    network = ef.construct(target, grid=K).network
    states = {state.stage: state.ids for state in network.trace((x + 0.5) / K)}
    return np.asarray(states["global shift"])


def table(name: str, ids: np.ndarray) -> None:
    """A line for each sentence, and whether the map is contextual."""
    print(f"{name}:")
    for text, row in zip(SENTENCES, ids, strict=True):
        words = zip(text.split(), row, strict=True)
        print("  " + "   ".join(f"{word} {number:.15g}" for word, number in words))
    found = ef.contextual_mapping(lambda _: ids, tokens)
    print(f"  contextual mapping: {found}")


# %%
if __name__ == "__main__":
    table("the mean", averaged(tokens))
    table("selective shifts", shifted(tokens))
    memory = ef.memorise(tokens, wanted[..., None])
    table("memorised", memory.network(tokens)[..., 0])
    print(f"wrong sentences: {len(memory.wrong())}; blocks: {memory.cost.blocks}")
