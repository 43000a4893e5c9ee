from datetime import date, datetime, timedelta, timezone

start = datetime(2024, 2, 28, 23, 30, tzinfo=timezone.utc)
for step in range(3):
    moment = start + timedelta(hours=12 * step)
    print(moment.isoformat(), moment.strftime("%A %d %B %Y"), moment.timestamp())
berlin = timezone(timedelta(hours=2), "CEST")
print(start.astimezone(berlin))
print((date(2026, 12, 24) - date(2026, 1, 1)).days, date(2026, 12, 24).isocalendar())
print(datetime.strptime("03/07/1999 07:05", "%d/%m/%Y %H:%M"))
