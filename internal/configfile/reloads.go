package configfile

import (
	"crypto/sha256"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

// Reloads counts the automatic reloads of a configuration file, under upstream's names. A nil *Reloads counts nothing.
type Reloads struct {
	serverHash string
	total      *prometheus.CounterVec
	last       *prometheus.GaugeVec
}

// NewReloads makes the metrics of a configuration, such as "authentication", for the API server of an identity.
func NewReloads(configuration, serverID string) *Reloads {
	labels := []string{"status", "apiserver_id_hash"}
	subsystem := configuration + "_config_controller"
	return &Reloads{
		serverHash: fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(serverID))),
		total: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: "apiserver", Subsystem: subsystem, Name: "automatic_reloads_total",
			Help: "Total number of automatic reloads of " + configuration + " configuration split by status and apiserver identity.",
		}, labels),
		last: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: "apiserver", Subsystem: subsystem, Name: "automatic_reload_last_timestamp_seconds",
			Help: "Timestamp of the last automatic reload of " + configuration + " configuration split by status and apiserver identity.",
		}, labels),
	}
}

// Record counts a reload, which has failed if err is not nil.
func (r *Reloads) Record(err error) {
	if r == nil {
		return
	}
	status := "success"
	if err != nil {
		status = "failure"
	}
	r.total.WithLabelValues(status, r.serverHash).Inc()
	r.last.WithLabelValues(status, r.serverHash).SetToCurrentTime()
}

// Describe implements prometheus.Collector.
func (r *Reloads) Describe(descs chan<- *prometheus.Desc) {
	r.total.Describe(descs)
	r.last.Describe(descs)
}

// Collect implements prometheus.Collector.
func (r *Reloads) Collect(metrics chan<- prometheus.Metric) {
	r.total.Collect(metrics)
	r.last.Collect(metrics)
}
