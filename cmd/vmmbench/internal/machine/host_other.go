//go:build !linux

package machine

import "github.com/cuvmm/cuvmm/cmd/vmmbench/internal/report"

func limits() []report.Limit { return nil }

func kernel() report.Text { return "" }
