// Package stats has the forms in which this module's statistics are read: JSON for expvar, and
// groups of attributes for slog. Both have the names of the JSON tags.
package stats

import (
	"encoding/json"
	"log/slog"
	"reflect"
	"strings"
)

// Text is the JSON of a struct of numbers and texts, which cannot fail.
func Text(stats any) string {
	b, _ := json.Marshal(stats) //nolint:errchkjson // see above
	return string(b)
}

// Group is the fields of a struct for slog, under their JSON names.
func Group(stats any) slog.Value { return slog.GroupValue(attrs(reflect.ValueOf(stats))...) }

func attrs(v reflect.Value) (all []slog.Attr) {
	for f, x := range v.Fields() {
		if f.Anonymous {
			all = append(all, attrs(x)...)
			continue
		}
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		all = append(all, slog.Any(name, x.Interface()))
	}
	return all
}
