"""Pages that run a network in the browser: what they hold, and how they are put together.

Python describes (`network_data`, `function_data`, ...), `inline` makes one HTML file of the
description and of the modules under `page/`, `show` writes, opens or embeds it.
"""
