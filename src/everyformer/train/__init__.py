"""Training: a few small modules on Hugging Face Accelerate.

    config        everything that decides a run
    objective     sums of losses, sums of weights, scores
    objectives/   labels of tokens, masked tokens, classes, spans
    schedule      the learning rate
    trainer       one update, scores, state
    evaluation    scores of all examples, and their means
    compiled      what torch.compile compiles, once for all runs of a process
    recorded      a function as one CUDA graph for each shape
    surroundings  what such a function works on besides its arguments
    run_folder    log, checkpoint, exact resume
    weights_from  an encoder, from one run to another
    state         a small run, from one machine to another
    processes     one or many
    loop          a whole run
    throughput    floating-point operations, and the rate of the device

What is learnt is a `Task` (`everyformer.data.task`). `from everyformer.train.loop import
train` needs the extra `everyformer[train]`.
"""
