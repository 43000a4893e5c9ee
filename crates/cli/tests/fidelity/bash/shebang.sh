#!/usr/bin/env python3
echo "still bash $0"
