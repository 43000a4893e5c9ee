import calendar
from datetime import date

print(calendar.month(2024, 2))
fridays = [day for day in range(1, 32)
           if date(2024, 3, day).weekday() == calendar.FRIDAY]
print(fridays, calendar.isleap(2100), calendar.monthrange(2023, 2))
