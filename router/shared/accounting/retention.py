from typing import Final

RETENTION_DAYS: Final = 400
"""Days after which Redis drops the sums of a day."""
