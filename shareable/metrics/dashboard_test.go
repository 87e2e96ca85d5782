package metrics

import (
	"encoding/json"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	vmmmetrics "github.com/cuvmm/cuvmm/vmm/metrics"
)

var (
	metricName = regexp.MustCompile(`\bcuvmm_[a-z_]*[a-z]\b`)
	rateOf     = regexp.MustCompile(`rate\((cuvmm_\w+)\{[^{}]*\}\[\$__rate_interval\]\)`)
)

// names are the names of all metrics of this package and of vmm/metrics.
func names(t *testing.T) map[string]bool {
	t.Helper()
	all := map[string]bool{}
	descs := make(chan *prometheus.Desc)
	go func() {
		defer close(descs)
		for _, c := range []prometheus.Collector{NewServer(nil), NewStore(nil, ""), vmmmetrics.NewDevice(nil), vmmmetrics.NewPool("", nil)} {
			c.Describe(descs)
		}
	}()
	for d := range descs {
		name := metricName.FindString(d.String())
		require.NotEmpty(t, name)
		require.False(t, all[name], name)
		all[name] = true
	}
	return all
}

// TestDashboard: the dashboard is JSON, its panels do not overlap, and it asks for metrics that there
// are: for counters by their rate, for others as they are.
func TestDashboard(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/guides/grafana-dashboard.json")
	require.NoError(t, err)
	var dashboard struct {
		Templating struct {
			List []struct {
				Name       string
				Definition string
			}
		}
		Panels []struct {
			ID          int
			Title       string
			Type        string
			Description string
			GridPos     struct{ H, W, X, Y int }
			FieldConfig struct{ Defaults struct{ Unit string } }
			Targets     []struct{ RefID, Expr, LegendFormat string }
		}
	}
	require.NoError(t, json.Unmarshal(text, &dashboard))
	all := names(t)
	variables := map[string]bool{"__rate_interval": true}
	for _, v := range dashboard.Templating.List {
		variables[v.Name] = true
		for _, name := range metricName.FindAllString(v.Definition, -1) {
			require.True(t, all[name], name)
		}
	}
	ids, taken := map[int]bool{}, map[[2]int]bool{}
	asked := map[string]bool{}
	for _, p := range dashboard.Panels {
		require.False(t, ids[p.ID], p.Title)
		ids[p.ID] = true
		for x := range p.GridPos.W {
			for y := range p.GridPos.H {
				at := [2]int{p.GridPos.X + x, p.GridPos.Y + y}
				require.False(t, taken[at], p.Title)
				taken[at] = true
			}
		}
		require.LessOrEqual(t, p.GridPos.X+p.GridPos.W, 24, p.Title)
		if p.Type == "row" {
			continue
		}
		require.NotEmpty(t, p.Description, p.Title)
		require.NotEmpty(t, p.FieldConfig.Defaults.Unit, p.Title)
		require.NotEmpty(t, p.Targets, p.Title)
		for _, target := range p.Targets {
			expr := target.Expr
			found := metricName.FindAllString(expr, -1)
			require.NotEmpty(t, found, p.Title)
			for _, name := range found {
				require.True(t, all[name], "%s of %s", name, p.Title)
				asked[name] = true
			}
			for _, m := range regexp.MustCompile(`\$(\w+)`).FindAllStringSubmatch(expr, -1) {
				require.True(t, variables[m[1]], m[1])
			}
			for _, m := range rateOf.FindAllStringSubmatch(expr, -1) {
				require.True(t, strings.HasSuffix(m[1], "_total"), expr)
			}
			require.NotContains(t, rateOf.ReplaceAllString(expr, ""), "_total", expr)
		}
	}
	for _, name := range []string{
		"device_used_bytes", "device_cached_bytes", "device_retiring_bytes", "device_quarantined_bytes", "device_host_copies_bytes",
		"device_pinned_bytes", "device_growths_total", "device_creates_total", "device_hits_total", "pool_used_bytes", "pool_reserved_bytes",
		"store_bytes", "store_objects", "store_clients", "store_requests_refused_total",
	} {
		require.True(t, asked["cuvmm_"+name], name)
	}
}

// TestMetricsAreDocumented: docs/reference/metrics.md has the name of each metric, and no other one.
func TestMetricsAreDocumented(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/reference/metrics.md")
	require.NoError(t, err)
	all, documented := names(t), map[string]bool{}
	for _, m := range regexp.MustCompile("(?m)^\\| `(cuvmm_\\w+)` \\|").FindAllStringSubmatch(string(text), -1) {
		documented[m[1]] = true
	}
	require.Equal(t, all, documented)
}
