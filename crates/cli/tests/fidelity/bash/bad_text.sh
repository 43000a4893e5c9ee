echo "ÿ"
