//go:build cgo && linux

package nvrtc

import (
	"maps"
	"regexp"
	"slices"
	"strings"
)

var (
	// splice is a line that goes on in the next.
	splice = regexp.MustCompile(`\\[ \t]*\r?\n`)
	// mayInclude is a line that can have a file read, and some that cannot. A directive
	// begins with #, %: or ??=, and a comment may part it over lines.
	mayInclude = regexp.MustCompile(`(?:#|%:|\?\?=)(?:.*\b(?:include|include_next|import|embed|__has_include|__has_include_next|__has_embed)\b|[ \t]*/\*)`)
	// plainInclude is a line that includes one file by its name.
	plainInclude = regexp.MustCompile(`^[ \t]*#[ \t]*include[ \t]*(?:"([^"]+)"|<([^>]+)>)`)
)

// unknownInclude names what may read a file that o.Headers does not have: the source, a
// header or a flag. It is empty if nothing does. What is in such a file would have to be
// a part of the cache's key.
func unknownInclude(source string, o Options) string {
	for _, flag := range o.Flags {
		if strings.HasPrefix(flag, "-I") || strings.HasPrefix(flag, "--include-path") ||
			strings.HasPrefix(flag, "-include") || strings.HasPrefix(flag, "--pre-include") || strings.Contains(flag, "pch") {
			return flag
		}
	}
	if !knownIncludes(source, o.Headers) {
		return o.Name
	}
	for _, name := range slices.Sorted(maps.Keys(o.Headers)) {
		if !knownIncludes(o.Headers[name], o.Headers) {
			return name
		}
	}
	return ""
}

func knownIncludes(text string, headers map[string]string) bool {
	for line := range strings.Lines(splice.ReplaceAllString(text, "")) {
		// Looking for words is faster, and most lines have none of these.
		if !strings.Contains(line, "include") && !strings.Contains(line, "import") && !strings.Contains(line, "embed") && !strings.Contains(line, "/*") ||
			!mayInclude.MatchString(line) {
			continue
		}
		m := plainInclude.FindStringSubmatch(line)
		if m == nil {
			return false
		}
		if _, known := headers[m[1]+m[2]]; !known {
			return false
		}
	}
	return true
}
