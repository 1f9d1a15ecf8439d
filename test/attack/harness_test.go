package attack

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"skiff/test/cluster"
)

// requestTimeout is how long the attacked server lets a request take. What an attacker holds must be released soon after.
const requestTimeout = 3 * time.Second

// The list that attackers request.
const (
	largeObjects = 30
	largeBytes   = 500_000
	largeList    = "/api/v1/namespaces/default/configmaps"
)

// target is a running server under attack, with the token of an attacker that may read.
type target struct {
	t      *testing.T
	config *rest.Config
	admin  *http.Client
	// anonymous sends requests without credentials but those that they bring.
	anonymous *http.Client
	host      string // and port
	token     string
	process   *cluster.Process
}

// start starts a server with large objects to list, and a service account that may read them.
func start(t *testing.T, flags ...string) *target {
	t.Helper()
	c, err := cluster.Skiff(t.TempDir(), append([]string{"--profiling", "--request-timeout=" + requestTimeout.String()}, flags...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Stop)
	a := &target{t: t, process: c.Server[0]}
	a.config, err = c.Config()
	a.must(err)
	a.admin, err = rest.HTTPClientFor(a.config)
	a.must(err)
	a.anonymous, err = rest.HTTPClientFor(rest.AnonymousClientConfig(a.config))
	a.must(err)
	at, err := url.Parse(a.config.Host)
	a.must(err)
	a.host = at.Host
	k, err := kubernetes.NewForConfig(a.config)
	a.must(err)
	a.prepare(k)
	return a
}

func (a *target) must(err error) {
	a.t.Helper()
	if err != nil {
		a.t.Fatal(err)
	}
}

func (a *target) prepare(k kubernetes.Interface) {
	a.t.Helper()
	ctx := a.t.Context()
	for i := range largeObjects {
		object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("large-", i)}, Data: map[string]string{"data": strings.Repeat("x", largeBytes)}}
		_, err := k.CoreV1().ConfigMaps("default").Create(ctx, object, metav1.CreateOptions{})
		a.must(err)
	}
	_, err := k.CoreV1().ServiceAccounts("default").Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "attacker"}}, metav1.CreateOptions{})
	a.must(err)
	_, err = k.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "attacker"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "view"},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: "default", Name: "attacker"}},
	}, metav1.CreateOptions{})
	a.must(err)
	token, err := k.CoreV1().ServiceAccounts("default").CreateToken(ctx, "attacker", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	a.must(err)
	a.token = token.Status.Token
}

// usage is what the server holds.
type usage struct {
	heap       float64 // bytes in use after a garbage collection
	goroutines float64
	seats      float64 // of all priority levels but exempt, to which the tests' own requests belong
	inFlight   float64 // requests that are being served, but watches and sessions
}

// usage reads what the server holds after a garbage collection.
func (a *target) usage() usage {
	a.t.Helper()
	a.get("/debug/pprof/heap?gc=1") // collects garbage
	now, err := a.readUsage(a.t.Context())
	a.must(err)
	return now
}

// readUsage reads what the server holds now.
func (a *target) readUsage(ctx context.Context) (usage, error) {
	body, err := a.read(ctx, "/metrics")
	if err != nil {
		return usage{}, err
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(body))
	return usage{
		heap: sum(families["go_memstats_heap_alloc_bytes"]), goroutines: sum(families["go_goroutines"]),
		seats: sum(families["apiserver_flowcontrol_current_executing_seats"]), inFlight: sum(families["apiserver_current_inflight_requests"]),
	}, err
}

// sum adds the values of a gauge, except those of the exempt priority level.
func sum(family *dto.MetricFamily) (total float64) {
	for _, metric := range family.GetMetric() {
		exempt := false
		for _, label := range metric.GetLabel() {
			exempt = exempt || label.GetName() == "priority_level" && label.GetValue() == "exempt"
		}
		if !exempt {
			total += metric.GetGauge().GetValue()
		}
	}
	return total
}

// get requests a path as the administrator, which must succeed.
func (a *target) get(path string) []byte {
	a.t.Helper()
	body, err := a.read(a.t.Context(), path)
	a.must(err)
	return body
}

// read requests a path as the administrator.
func (a *target) read(ctx context.Context, path string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, a.config.Host+path, nil)
	if err != nil {
		return nil, err
	}
	resp, err := a.admin.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("GET %s: %s", path, resp.Status)
	}
	return io.ReadAll(resp.Body)
}

// The most that an attack may leave behind: pools and caches, not what grows with the attack.
const (
	leftHeap       = 16 << 20
	leftGoroutines = 50
)

// expectReleased waits until the server holds no more than before the attack, while the attacker keeps its connections.
func (a *target) expectReleased(before usage) {
	a.t.Helper()
	var now usage
	a.eventually(func() bool {
		now = a.usage()
		return now.seats <= before.seats && now.inFlight <= before.inFlight && now.heap <= before.heap+leftHeap
	}, func() string {
		return fmt.Sprintf("the server still holds %+v; it held %+v before the attack", now, before)
	})
	a.t.Logf("before the attack %+v, after it %+v", before, now)
}

// expectBoundedMemory checks the most memory that the server ever had.
func (a *target) expectBoundedMemory() {
	a.t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", a.process.PID()))
	a.must(err)
	_, after, found := strings.Cut(string(status), "VmHWM:")
	fields := strings.Fields(after)
	if !found || len(fields) == 0 {
		a.t.Fatalf("no VmHWM in %s", status)
	}
	kilobytes, err := strconv.Atoi(fields[0])
	a.must(err)
	a.t.Logf("the server had at most %d MiB", kilobytes>>10)
	if kilobytes<<10 > maxResident {
		a.t.Errorf("the server had %d MiB", kilobytes>>10)
	}
}

// expectWaiting waits until a number of responses wait for their clients. They have returned their seats, so that others are served.
func (a *target) expectWaiting(responses float64) {
	a.t.Helper()
	var now usage
	a.eventually(func() bool {
		now = a.usage()
		return now.inFlight >= responses && now.seats == 0
	}, func() string {
		return fmt.Sprintf("%.0f responses do not wait, or not without seats: %+v", responses, now)
	})
}

func (a *target) eventually(condition func() bool, failure func() string) {
	a.t.Helper()
	for end := time.Now().Add(40 * time.Second); !condition(); time.Sleep(100 * time.Millisecond) {
		if time.Now().After(end) {
			a.t.Fatal(failure())
		}
	}
}

// dial opens a connection with TLS that negotiates a protocol.
func (a *target) dial(protocol string) *tls.Conn {
	a.t.Helper()
	config, err := rest.TLSConfigFor(rest.AnonymousClientConfig(a.config))
	a.must(err)
	config.NextProtos = []string{protocol}
	if config.ServerName, _, err = net.SplitHostPort(a.host); err != nil {
		a.t.Fatal(err)
	}
	raw, err := net.Dial("tcp", a.host)
	a.must(err)
	a.must(raw.(*net.TCPConn).SetReadBuffer(4 << 10)) // the server's socket fills soon
	conn := tls.Client(raw, config)
	a.t.Cleanup(func() { conn.Close() })
	a.must(conn.HandshakeContext(a.t.Context()))
	return conn
}

// peer is a client of HTTP/2 that sends single frames.
type peer struct {
	*http2.Framer
	conn *tls.Conn
	a    *target
	next uint32 // the next stream
}

// connect opens a connection of HTTP/2 with an initial window for streams.
func (a *target) connect(window uint32) *peer {
	a.t.Helper()
	conn := a.dial("h2")
	p := &peer{Framer: http2.NewFramer(conn, conn), conn: conn, a: a, next: 1}
	p.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	_, err := io.WriteString(conn, http2.ClientPreface)
	a.must(err)
	a.must(p.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: window}))
	return p
}

// request opens a stream and returns its number, or the error of a connection that the server has closed. headers are name and value in
// turn.
func (p *peer) request(method, path string, end bool, headers ...string) (uint32, error) {
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	fields := append([]string{":method", method, ":scheme", "https", ":path", path, ":authority", p.a.host}, headers...)
	for i := 0; i < len(fields); i += 2 {
		p.a.must(encoder.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]}))
	}
	id := p.next
	p.next += 2
	first := block.Next(16 << 10)
	if err := p.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: first, EndStream: end, EndHeaders: block.Len() == 0}); err != nil {
		return id, err
	}
	for block.Len() > 0 {
		part := block.Next(16 << 10)
		if err := p.WriteContinuation(id, block.Len() == 0, part); err != nil {
			return id, err
		}
	}
	return id, nil
}

// bearer are the headers with the attacker's credential.
func (a *target) bearer() []string { return []string{"authorization", "Bearer " + a.token} }
