# needs: PIL
from PIL import Image, ImageDraw, ImageFilter

image = Image.new("RGB", (64, 48), "navy")
ImageDraw.Draw(image).ellipse((10, 10, 40, 40), fill="gold", outline="white")
image.filter(ImageFilter.GaussianBlur(2)).resize((32, 24)).save("out.png")
again = Image.open("out.png")
print(again.size, again.mode, again.format, again.getpixel((0, 0)))
print(image.convert("L").getextrema(), len(image.tobytes()))
Image.open("missing.png")
