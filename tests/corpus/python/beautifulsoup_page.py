# needs: bs4
from bs4 import BeautifulSoup

page = """<html><body><h1>Prices</h1><table>
<tr><td>tea</td><td>2.50</td></tr><tr><td>milk</td><td>1.20</td></tr></table></body></html>"""
soup = BeautifulSoup(page, "html.parser")
print(soup.h1.text)
for row in soup.select("tr"):
    name, price = (cell.get_text() for cell in row("td"))
    print(name, float(price))
print(soup.find("td").parent.name, soup.prettify()[:40])
