package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/cuvmm/cuvmm/internal/promstats"
	"github.com/cuvmm/cuvmm/shareable"
)

// serverRows are the names of shareable.Stats.
var serverRows = []promstats.Row{
	{Field: "Conns", Name: "cuvmm_server_clients", Help: "Open connections, also those that are being closed."},
	{Field: "Published", Name: "cuvmm_server_publications", Help: "Ranges that are published."},
	{Field: "KeptFDs", Name: "cuvmm_server_kept_descriptors", Help: "Descriptors of chunks that are kept open."},

	{Field: "Accepted", Name: "cuvmm_server_connections_total", Help: "Connections accepted."},
	{Field: "Refused", Name: "cuvmm_server_connections_refused_total", Help: "Connections refused, because of their user or of a limit."},
	{Field: "Violations", Name: "cuvmm_server_protocol_violations_total", Help: "Connections that broke the protocol."},
	{Field: "TimedOut", Name: "cuvmm_server_connections_timed_out_total", Help: "Connections that took longer than a time limit."},
	{Field: "Frames", Name: "cuvmm_server_frames_total", Help: "Frames of chunks sent."},
	{Field: "Resyncs", Name: "cuvmm_server_resyncs_total", Help: "Requests to send chunks again."},
}

// NewServer returns a collector of the server's Stats. Its metrics have the label socket, which is
// the server's Path. A registry takes one collector for each path, so that the second one of two
// servers without a path needs prometheus.WrapRegistererWith and a label of its own. A closed server
// has metrics as its Stats has numbers; Unregister ends them. It makes no driver call. Safe for
// concurrent use.
func NewServer(s *shareable.Server) prometheus.Collector {
	return promstats.Collector(serverRows, prometheus.Labels{"socket": s.Path()}, s.Stats)
}
