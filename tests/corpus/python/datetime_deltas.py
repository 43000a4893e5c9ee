from datetime import datetime, timedelta, timezone

start = datetime(2024, 2, 27, 22, 30, tzinfo=timezone.utc)
for step in (timedelta(hours=3), timedelta(days=2), timedelta(weeks=1)):
    start += step
    print(start.isoformat(), start.strftime("%A %d %B %Y"), start.isocalendar().week)
print((datetime(2024, 12, 25) - datetime(2024, 3, 1)).days)
print(datetime.fromisoformat("2024-05-06T07:08:09+02:00").astimezone(timezone.utc))
datetime.strptime("31/02/2024", "%d/%m/%Y")
