package doctor

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"golang.org/x/sync/errgroup"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	apimachineryversion "k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/rest"

	"skiff/internal/balancer"
	"skiff/internal/client"
)

// survey is what the API servers of a cluster say about themselves.
type survey struct {
	// now is when it was made, by the clock of this host.
	now     time.Time
	servers []server
	// isOutside is set if only the server of the kubeconfig was reached: the others' addresses cannot be reached from this host.
	isOutside bool
	// kubeconfig is the client certificate of the kubeconfig; nil: it has none.
	kubeconfig *x509.Certificate
}

// server is an API server.
type server struct {
	// address is host:port.
	address string
	// err is why it does not respond. Then the other fields are not set.
	err error
	// ahead is how much its clock is ahead of this host's, at most precision off.
	ahead, precision time.Duration
	certificate      *x509.Certificate
	// failed are the health checks that failed.
	failed  []string
	version string
	metrics map[string]*dto.MetricFamily
	// flags are those it was started with, nil if they are not known.
	flags map[string]string
}

const (
	// maxServers bounds how many servers are asked.
	maxServers = 32
	// maxResponse bounds a response, which is read line by line.
	maxResponse = 256 << 20
	// maxPage bounds what is kept of a response.
	maxPage = 8 << 20
	// surveyReserve is how much of the time of the survey is left when servers that do not respond are given up.
	surveyReserve = 4
)

// responds reports whether any server does.
func (s survey) responds() bool { return len(s.responding()) > 0 }

// responding are the servers that respond.
func (s survey) responding() (all []server) {
	for _, one := range s.servers {
		if one.err == nil {
			all = append(all, one)
		}
	}
	return all
}

// survey asks every API server.
func (c Cluster) survey(ctx context.Context) (s survey) {
	s.now = time.Now()
	// Credentials that cannot be had make the first request fail, too.
	s.kubeconfig, _ = clientCertificate(c.Client.Config)
	asking, cancel := shorten(ctx)
	defer cancel()
	// The server of the kubeconfig may be any of the others, or a load balancer.
	first, err := c.ask(asking, "")
	if err != nil {
		first.err = err
		s.servers = []server{first}
		return s
	}
	addresses, err := c.addresses(asking)
	if err != nil || len(addresses) == 0 {
		// What a user without the right to list them can know. The checks that need the right say so.
		s.servers = []server{first}
		return s
	}
	s.servers = make([]server, min(len(addresses), maxServers))
	var group errgroup.Group
	group.SetLimit(maxParallel)
	for i := range s.servers {
		group.Go(func() error {
			s.servers[i], s.servers[i].err = c.ask(asking, addresses[i])
			return nil
		})
	}
	_ = group.Wait() // always nil
	if !s.responds() {
		s.servers, s.isOutside = []server{first}, len(addresses) > 1
	}
	return s
}

// shorten returns a context that ends somewhat before ctx.
func shorten(ctx context.Context) (context.Context, context.CancelFunc) {
	deadline, ok := ctx.Deadline()
	if !ok {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, time.Until(deadline)*(surveyReserve-1)/surveyReserve)
}

// clientCertificate is the client certificate of a connection.
func clientCertificate(c *rest.Config) (*x509.Certificate, error) {
	config, err := rest.TLSConfigFor(c)
	if err != nil || config == nil || config.GetClientCertificate == nil {
		return nil, err
	}
	pair, err := config.GetClientCertificate(nil)
	if err != nil || len(pair.Certificate) == 0 {
		return nil, err
	}
	return x509.ParseCertificate(pair.Certificate[0])
}

// addresses are those of the API servers that run, as host:port.
func (c Cluster) addresses(ctx context.Context) (all []string, err error) {
	ofService := client.Selector{Labels: labels.SelectorFromSet(labels.Set{discoveryv1.LabelServiceName: "kubernetes"})}
	err = client.For[*discoveryv1.EndpointSlice](c.Client).EachPage(ctx, metav1.NamespaceDefault, ofService, pageSize, func(page []*discoveryv1.EndpointSlice) error {
		for _, slice := range page {
			all = append(all, balancer.EndpointAddresses(slice)...)
		}
		return nil
	})
	slices.Sort(all)
	return slices.Compact(all), err
}

// ask asks the server at an address, or that of the kubeconfig.
func (c Cluster) ask(ctx context.Context, address string) (s server, err error) {
	connection := rest.CopyConfig(c.Client.Config)
	if address != "" {
		connection.Host, connection.APIPath = "https://"+address, ""
		connection.TLSClientConfig.ServerName = c.ServerName
	}
	base, _, err := rest.DefaultServerUrlFor(connection)
	if err != nil {
		return s, err
	}
	s.address = base.Host
	requests, err := rest.HTTPClientFor(connection)
	if err != nil {
		return s, err
	}
	defer requests.CloseIdleConnections()
	q := query{requests, strings.TrimSuffix(base.String(), "/")}
	// The first response has opened the connection, so that the time of the second one tells more about the clock.
	if err := q.get(ctx, "/version", "", func(r *http.Response) error {
		var info apimachineryversion.Info
		if r.TLS != nil && len(r.TLS.PeerCertificates) > 0 {
			s.certificate = r.TLS.PeerCertificates[0]
		}
		if r.StatusCode != http.StatusOK {
			return nil // not for everyone
		}
		err := json.NewDecoder(io.LimitReader(r.Body, maxPage)).Decode(&info)
		s.version = info.GitVersion
		return err
	}); err != nil {
		return s, err
	}
	begin := time.Now()
	if err := q.get(ctx, "/readyz?verbose", "", func(r *http.Response) error {
		took := time.Since(begin)
		if date, err := http.ParseTime(r.Header.Get("Date")); err == nil {
			s.ahead, s.precision = skew(date, begin, took)
		}
		text, err := io.ReadAll(io.LimitReader(r.Body, maxPage))
		s.failed = failedChecks(r.StatusCode, string(text))
		return err
	}); err != nil {
		return s, err
	}
	return s, errors.Join(
		q.get(ctx, "/metrics", "", func(r *http.Response) (err error) {
			if r.StatusCode == http.StatusOK {
				s.metrics, err = parseMetrics(r.Body)
			}
			return err
		}),
		q.get(ctx, "/flagz", "application/json;as=Flagz;v=v1beta1;g=config.k8s.io", func(r *http.Response) error {
			var page struct {
				Flags map[string]string `json:"flags"`
			}
			if r.StatusCode != http.StatusOK {
				return nil
			}
			err := json.NewDecoder(io.LimitReader(r.Body, maxPage)).Decode(&page)
			s.flags = page.Flags
			return err
		}))
}

// query sends requests to a server.
type query struct {
	client *http.Client
	url    string
}

// get sends a request and passes the response on.
func (q query) get(ctx context.Context, path, accept string, read func(*http.Response) error) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, q.url+path, nil)
	if err != nil {
		return err
	}
	if accept != "" {
		request.Header.Set("Accept", accept)
	}
	response, err := q.client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if err := read(response); err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	return nil
}

// skew is how much a clock is ahead, given the time in a response, which is cut to seconds, and when the request was sent and how long it took.
func skew(date, begin time.Time, took time.Duration) (ahead, precision time.Duration) {
	const half = time.Second / 2
	return date.Add(half).Sub(begin.Add(took / 2)).Round(100 * time.Millisecond), half + took/2
}

// failedChecks are the names of the checks that failed, in a response of /readyz.
func failedChecks(status int, text string) (failed []string) {
	for line := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(line, "[-]"); ok {
			name, _, _ := strings.Cut(rest, " ")
			failed = append(failed, name)
		}
	}
	if len(failed) == 0 && status >= http.StatusInternalServerError {
		first, _, _ := strings.Cut(strings.TrimSpace(text), "\n")
		failed = append(failed, cmp.Or(first, "status "+strconv.Itoa(status)))
	}
	return failed
}

// The metrics that the checks read.
const (
	metricEtcdID          = "etcd_server_id"
	metricEtcdHasLeader   = "etcd_server_has_leader"
	metricEtcdChanges     = "etcd_server_leader_changes_seen_total"
	metricEtcdAlarms      = "etcd_debugging_server_alarms"
	metricEtcdSize        = "etcd_mvcc_db_total_size_in_bytes"
	metricEtcdInUse       = "etcd_mvcc_db_total_size_in_use_in_bytes"
	metricEtcdQuota       = "etcd_server_quota_backend_bytes"
	metricEtcdFsync       = "etcd_disk_wal_fsync_duration_seconds"
	metricEtcdCommit      = "etcd_disk_backend_commit_duration_seconds"
	metricStart           = "process_start_time_seconds"
	metricSnapshots       = "skiff_snapshots_total"
	metricLastSnapshot    = "skiff_snapshot_last_success_timestamp_seconds"
	metricDeprecatedCalls = "apiserver_requested_deprecated_apis"
)

var wantedMetrics = map[string]bool{
	metricEtcdID: true, metricEtcdHasLeader: true, metricEtcdChanges: true, metricEtcdAlarms: true, metricEtcdSize: true, metricEtcdInUse: true, metricEtcdQuota: true,
	metricEtcdFsync: true, metricEtcdCommit: true, metricStart: true, metricSnapshots: true, metricLastSnapshot: true, metricDeprecatedCalls: true,
}

// parseMetrics reads the metrics that are wanted. A server of a large cluster has many thousand others, which are skipped line by line.
func parseMetrics(from io.Reader) (map[string]*dto.MetricFamily, error) {
	var kept bytes.Buffer
	lines := bufio.NewReaderSize(io.LimitReader(from, maxResponse), 64<<10)
	for {
		line, err := lines.ReadSlice('\n')
		if errors.Is(err, bufio.ErrBufferFull) {
			return nil, errors.New("a line of the metrics is too long")
		}
		if isWantedMetric(string(line)) && kept.Len()+len(line) <= maxPage {
			kept.Write(line)
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	return parser.TextToMetricFamilies(&kept)
}

// isWantedMetric reports whether a line of metrics is a value or the type of one that is wanted.
func isWantedMetric(line string) bool {
	name, isType := strings.CutPrefix(line, "# TYPE ")
	if !isType && strings.HasPrefix(line, "#") {
		return false
	}
	if end := strings.IndexAny(name, "{ "); end >= 0 {
		name = name[:end]
	}
	for _, suffix := range []string{"", "_bucket", "_sum", "_count"} {
		if base, ok := strings.CutSuffix(name, suffix); ok && wantedMetrics[base] {
			return true
		}
	}
	return false
}

// sample is a value of a metric and its labels.
type sample struct {
	labels map[string]string
	value  float64
}

// samples are the values of a counter or gauge.
func (s server) samples(name string) (all []sample) {
	for _, m := range s.metrics[name].GetMetric() {
		one := sample{labels: map[string]string{}}
		for _, pair := range m.GetLabel() {
			one.labels[pair.GetName()] = pair.GetValue()
		}
		switch {
		case m.GetGauge() != nil:
			one.value = m.GetGauge().GetValue()
		case m.GetCounter() != nil:
			one.value = m.GetCounter().GetValue()
		default:
			one.value = m.GetUntyped().GetValue()
		}
		all = append(all, one)
	}
	return all
}

// value is that of a metric without labels; ok is false if the server does not have it.
func (s server) value(name string) (value float64, ok bool) {
	all := s.samples(name)
	if len(all) != 1 {
		return 0, false
	}
	return all[0].value, true
}

// started is when the server was started.
func (s server) started() (time.Time, bool) {
	seconds, ok := s.value(metricStart)
	return time.Unix(int64(seconds), 0), ok
}

// quantile is what a quantile of a histogram's values is at least, which is the lower bound of its bucket, in seconds; ok is false without at least minimum values.
func (s server) quantile(name string, q float64, minimum uint64) (least time.Duration, ok bool) {
	for _, m := range s.metrics[name].GetMetric() {
		h := m.GetHistogram()
		count := h.GetSampleCount()
		if count < minimum {
			continue
		}
		least = 0
		for _, bucket := range h.GetBucket() {
			if float64(bucket.GetCumulativeCount()) >= q*float64(count) {
				return least, true
			}
			least = time.Duration(bucket.GetUpperBound() * float64(time.Second)).Round(time.Microsecond)
		}
	}
	return 0, false
}

// decideAPI is about whether servers respond and are ready.
func decideAPI(s survey) (findings []Finding) {
	var failing []string
	for _, one := range s.servers {
		if one.err != nil {
			failing = append(failing, one.address)
			findings = append(findings, Finding{
				Severity: Error, Problem: fmt.Sprintf("the API server at %s does not respond: %v", one.address, one.err), Breaks: "requests to it fail; nothing in the cluster is changed or repaired without any API server",
				When: whenNow, Fix: "start it, and read its log: journalctl -u skiff; check the port and the firewall",
			})
			continue
		}
		if len(one.failed) > 0 {
			findings = append(findings, Finding{
				Severity: Error, Problem: fmt.Sprintf("the API server at %s is not ready: %s", one.address, some(one.failed)), Breaks: "it gets no requests of load balancers and nodes",
				When: whenNow, Fix: "wait if it has just been started; otherwise its log says why: kubectl get --raw '/readyz?verbose'",
			})
		}
	}
	if s.isOutside {
		findings = append(findings, Finding{
			Severity: Warning, Problem: "the addresses of the API servers are not reached from this host; only the one behind the kubeconfig was examined", Breaks: "unknown", When: "unknown",
			Fix: "examine on the host of a server",
		})
	}
	if len(failing) > 0 && len(failing) == len(s.servers) {
		findings[0].Breaks = "nothing in the cluster is changed or repaired; running pods go on. Nothing else was examined"
	}
	return findings
}
