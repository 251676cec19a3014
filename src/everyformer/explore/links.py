"""Where a page may send its reader: the documentation, and the lines of the source."""

import re
from dataclasses import dataclass

from everyformer.errors import InputError

_OTHER_SCHEME = re.compile(r"(?!https?:|file:)[A-Za-z][A-Za-z0-9+.-]*:")


@dataclass(frozen=True)
class Links:
    """Addresses without which a page names files as text: it may be opened anywhere.

    Args:
        site: Of the documentation that `make docs` built, such as ../site.
        code: Of the files of the repository; `{code}/src/..py#L7` shows line 7.

    Raises:
        InputError: If one is not the address of a page.
    """

    site: str | None = None
    code: str | None = None

    def __post_init__(self) -> None:
        for name, address in (("site", self.site), ("code", self.code)):
            if address is None:
                continue
            if not address.strip() or _OTHER_SCHEME.match(address.strip()):
                msg = (
                    f"{name}={address!r} is not the address of a page. Give one that "
                    "begins with https:, http: or file:, or a relative one such as ../site."
                )
                raise InputError(msg)

    def to_docs(self, file: str) -> str:
        """The page made from docs/a/b.md: SITE/a/b.html; empty if there is no site."""
        if self.site is None:
            return ""
        place = file.removeprefix("docs/").removesuffix(".md")
        return f"{self.site.strip().rstrip('/')}/{place}.html"

    def to_code(self, place: str) -> str:
        """A file, or with file.py:7 its line 7; empty if no address is known."""
        if self.code is None or not place:
            return ""
        file, _, line = place.partition(":")
        return f"{self.code.strip().rstrip('/')}/src/{file}" + (f"#L{line}" if line else "")


NO_LINKS = Links()
"""Files are named as text."""
