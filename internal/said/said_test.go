package said_test

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/internal/said"
)

func TestWord(t *testing.T) {
	for text, want := range map[string]string{
		"": `""`, "kv/1": "kv/1", "é": "é", "a b": `"a b"`, "a\x1b[31m": `"a\x1b[31m"`, "a\nb": `"a\nb"`,
		"\u202eabc": `"\u202eabc"`, "\xff": `"\xff"`, `"a"`: `"\"a\""`, "\u009b": `"\u009b"`,
	} {
		require.Equal(t, want, said.Word(text))
	}
}

func TestLine(t *testing.T) {
	for text, want := range map[string]string{"": "", "a \"b\"": "a \"b\"", "a\nb": `"a\nb"`, "\xff": `"\xff"`} {
		require.Equal(t, want, said.Line(text))
	}
}

// TestScreen also writes each byte alone.
func TestScreen(t *testing.T) {
	const text = "é\t日 \"a\\\"\x1b[2J\r\x00\n\u202e\u009b\x7f\xff.\U0010ffff"
	const want = "é\t日 \"a\\\"\\u001b[2J\\u000d\\u0000\n\\u202e\\u009b\\u007f\\xff.\\udbff\\udfff"
	var whole, single bytes.Buffer
	n, err := fmt.Fprint(said.Screen(&whole), text)
	require.NoError(t, err)
	require.Equal(t, len(text), n)
	require.Equal(t, want, whole.String())
	w := said.Screen(&single)
	for i := range len(text) {
		_, err := w.Write([]byte(text[i : i+1]))
		require.NoError(t, err)
	}
	require.Equal(t, want, single.String())
}
