from datetime import datetime
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

try:
    meeting = datetime(2024, 7, 1, 9, 0, tzinfo=ZoneInfo("America/New_York"))
except ZoneInfoNotFoundError as error:
    raise SystemExit(f"no time zones: {error}")
for zone in ("Europe/Berlin", "Asia/Tokyo", "UTC"):
    print(zone, meeting.astimezone(ZoneInfo(zone)).strftime("%H:%M %Z"))
