from datetime import datetime
from zoneinfo import ZoneInfo

for name in ("Europe/Berlin", "America/New_York", "Asia/Kolkata"):
    try:
        moment = datetime(2026, 7, 1, 12, tzinfo=ZoneInfo(name))
    except Exception as error:
        print(type(error).__name__, error)
    else:
        print(name, moment.utcoffset(), moment.tzname())
