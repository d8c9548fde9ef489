"""Ids of the page's components: callbacks, scripts and tests name the same ones."""

HANG_VERDICT = "hang-verdict"
HANG_RANKS = "hang-ranks"
HANG_PAGE = "hang-page"
