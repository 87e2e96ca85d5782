package ipc

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

const (
	rawSize = 64
	maxText = 4096 // bytes; what we write is below 400
)

// A text form begins with the base64 of the 64 bytes in a line of its own, as programs of
// other libraries write and read it. Our fields follow, each as "name value" in a line, and
// then lastLine, by which a text that was cut off is found. Other lines are ignored.
const lastLine = "end"

// field is one line of ours.
type field struct {
	name  string
	value *uint64
	text  *string // instead of value
	base  int     // of value
}

// appendText is the text form of 64 bytes and the fields that are not zero.
func appendText(raw [rawSize]byte, fields []field) []byte {
	text := base64.StdEncoding.AppendEncode(nil, raw[:])
	text = append(text, '\n')
	for _, f := range fields {
		switch {
		case f.text != nil && *f.text != "":
			text = fmt.Appendf(text, "%s %s\n", f.name, *f.text)
		case f.value != nil && *f.value != 0:
			text = fmt.Appendf(text, "%s %s\n", f.name, strconv.FormatUint(*f.value, f.base))
		}
	}
	return append(text, lastLine+"\n"...)
}

// parseText sets the fields that a text has, and returns the 64 bytes. A text of 64 bytes is
// taken for the bytes themselves.
func parseText(text []byte, fields []field) (raw [rawSize]byte, err error) {
	switch {
	case len(text) == 0:
		return raw, fmt.Errorf("%w: it is empty", ErrHandle)
	case len(text) > maxText:
		return raw, fmt.Errorf("%w: more than %d bytes", ErrHandle, maxText)
	case len(text) == rawSize && !isBase64(text):
		return [rawSize]byte(text), nil
	}
	first, rest, _ := strings.Cut(string(text), "\n")
	b, err := base64.StdEncoding.Strict().DecodeString(strings.TrimSuffix(first, "\r"))
	if err != nil || len(b) != rawSize {
		return raw, fmt.Errorf("%w: its first line is not the base64 of %d bytes", ErrHandle, rawSize)
	}
	if err := parseFields(rest, fields); err != nil {
		return raw, err
	}
	return [rawSize]byte(b), nil
}

// isBase64 reports whether bytes are text that was cut off after 64 of them. Of 64 bytes that a
// driver makes, some are 0.
func isBase64(b []byte) bool {
	const letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/="
	return len(bytes.Trim(b, letters)) == 0
}

func parseFields(text string, fields []field) error {
	seen := map[string]bool{}
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\r\n")
		name, value, _ := strings.Cut(line, " ")
		if line == lastLine {
			name = lastLine
		}
		for _, f := range append(fields, field{name: lastLine}) {
			if f.name != name {
				continue
			}
			if seen[name] || f.set(value) != nil {
				return fmt.Errorf("%w: the line %q", ErrHandle, line)
			}
			seen[name] = true
		}
	}
	if len(seen) > 0 && !seen[lastLine] {
		return fmt.Errorf("%w: it is truncated", ErrHandle)
	}
	return nil
}

var errField = errors.New("no value")

func (f field) set(value string) (err error) {
	switch {
	case f.text != nil:
		if value == "" {
			return errField
		}
		*f.text = value
	case f.value != nil:
		*f.value, err = strconv.ParseUint(value, f.base, 64)
	}
	return err
}
