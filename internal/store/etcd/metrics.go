package etcd

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// ServerMetrics gathers the metrics of the embedded etcd, which etcd registers once per process, without those that a Store collects.
type ServerMetrics struct{}

// collectedByStore are the names of metrics of etcd that a Store collects, for an external etcd as well.
var collectedByStore = []string{"etcd_mvcc_db_total_size_in_bytes", "etcd_mvcc_db_total_size_in_use_in_bytes", "etcd_server_quota_backend_bytes"}

// Gather implements prometheus.Gatherer.
func (ServerMetrics) Gather() ([]*dto.MetricFamily, error) {
	families, err := prometheus.DefaultGatherer.Gather()
	return slices.DeleteFunc(families, func(family *dto.MetricFamily) bool {
		return !strings.HasPrefix(family.GetName(), "etcd_") || slices.Contains(collectedByStore, family.GetName())
	}), err
}

// sizes are the sizes of etcd's database in bytes.
type sizes struct {
	total, inUse, quota int64
}

// sizesTimeout is how long a scrape waits for a remote etcd.
const sizesTimeout = 2 * time.Second

// The metrics of the database's size, with the names of etcd and of upstream's API server.
var (
	storageSizeDesc = prometheus.NewDesc("apiserver_storage_size_bytes",
		"Size of the storage database file physically allocated in bytes.", []string{"storage_cluster_id"}, nil)
	totalSizeDesc = prometheus.NewDesc("etcd_mvcc_db_total_size_in_bytes", "Total size of the underlying database physically allocated in bytes.", nil, nil)
	inUseSizeDesc = prometheus.NewDesc("etcd_mvcc_db_total_size_in_use_in_bytes", "Total size of the underlying database logically in use in bytes.", nil, nil)
	quotaDesc     = prometheus.NewDesc("etcd_server_quota_backend_bytes", "Current backend storage quota size in bytes.", nil, nil)
)

// Describe implements prometheus.Collector.
func (s *Store) Describe(descs chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{storageSizeDesc, totalSizeDesc, inUseSizeDesc, quotaDesc} {
		descs <- desc
	}
}

// Collect implements prometheus.Collector. There are no sizes while etcd is not available.
func (s *Store) Collect(metrics chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), sizesTimeout)
	defer cancel()
	size, err := s.engine.sizes(ctx)
	if err != nil {
		return
	}
	gauge := func(desc *prometheus.Desc, value int64, labels ...string) {
		metrics <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, float64(value), labels...)
	}
	gauge(storageSizeDesc, size.total, "etcd-0")
	gauge(totalSizeDesc, size.total)
	gauge(inUseSizeDesc, size.inUse)
	if size.quota > 0 {
		gauge(quotaDesc, size.quota)
	}
}

func (e *embedded) sizes(context.Context) (sizes, error) {
	return sizes{total: e.server.Backend().Size(), inUse: e.server.Backend().SizeInUse(), quota: e.quota}, nil
}

// sizes are those of the first server: all members have the same data.
func (r *remote) sizes(ctx context.Context) (sizes, error) {
	status, err := r.client.Status(ctx, r.client.Endpoints()[0])
	if err != nil {
		return sizes{}, remoteError(ctx, err)
	}
	return sizes{total: status.DbSize, inUse: status.DbSizeInUse, quota: status.DbSizeQuota}, nil
}
