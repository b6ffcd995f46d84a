package local

import (
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxLineBytes bounds the text of another program in a message.
const maxLineBytes = 300

// OneLine makes a text of another program fit for a message of one line: control characters and bytes that are not UTF-8 are escaped as
// in Go, and the text ends in "..." if it would take more than about 300 bytes.
func OneLine(text string) string {
	var b strings.Builder
	for len(text) > 0 {
		r, size := utf8.DecodeRuneInString(text)
		part := text[:size]
		if r == utf8.RuneError && size == 1 || !unicode.IsPrint(r) {
			part = strings.Trim(strconv.Quote(part), `"`)
		}
		if b.Len()+len(part) > maxLineBytes {
			return b.String() + "..."
		}
		b.WriteString(part)
		text = text[size:]
	}
	return b.String()
}
