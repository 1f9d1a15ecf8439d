package configfile

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"skiff/test/metrics"
)

func TestReloads(t *testing.T) {
	r := NewReloads("authorization", "server")
	registry := prometheus.NewRegistry()
	registry.MustRegister(r)
	began := time.Now()
	r.Record(nil)
	r.Record(nil)
	r.Record(errors.New("invalid"))
	(*Reloads)(nil).Record(nil)
	labels := fmt.Sprintf("{apiserver_id_hash=sha256:%x,status=", sha256.Sum256([]byte("server")))
	const prefix = "apiserver_authorization_config_controller_automatic_reload"
	metrics.Check(t, registry, map[string]float64{prefix + "s_total" + labels + "success}": 2, prefix + "s_total" + labels + "failure}": 1})
	if at := metrics.Values(t, registry)[prefix+"_last_timestamp_seconds"+labels+"success}"]; at < float64(began.Unix()) {
		t.Errorf("last reload at %v", at)
	}
}
