// Package promstats makes Prometheus's metrics of structs of numbers: package vmm/metrics and
// shareable/metrics have the tables that say which field has which name. It is apart from package
// internal/stats so that no other package depends on Prometheus's.
package promstats
