exec /nosuch
echo never
