cat <<EOF
no end
