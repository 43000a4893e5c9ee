# needs: openpyxl
from openpyxl import Workbook, load_workbook
from openpyxl.styles import Font

book = Workbook()
sheet = book.active
sheet.title = "Sales"
sheet.append(["month", "amount"])
for month, amount in [("Jan", 10), ("Feb", 12.5)]:
    sheet.append([month, amount])
sheet["A1"].font = Font(bold=True)
sheet["B4"] = "=SUM(B2:B3)"
book.save("sales.xlsx")
loaded = load_workbook("sales.xlsx")["Sales"]
print([[cell.value for cell in row] for row in loaded.iter_rows()])
print(loaded.dimensions, loaded["A1"].font.bold)
