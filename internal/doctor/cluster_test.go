package doctor

import (
	"crypto/x509"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"skiff/internal/cluster"
	"skiff/internal/kubelet/evict"
	"skiff/internal/pki"
	"skiff/internal/store/etcd"
)

// testTime is the time of all tests.
var testTime = time.Date(2026, time.May, 1, 12, 0, 0, 0, time.UTC)

const day = 24 * time.Hour

// unixText is a time as metrics have it.
func unixText(t time.Time) string { return strconv.FormatInt(t.Unix(), 10) }

// withMetrics is a server with metrics.
func withMetrics(t *testing.T, address, text string) server {
	t.Helper()
	families, err := parseMetrics(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return server{address: address, metrics: families, version: "v1.37.1"}
}

func surveyOf(servers ...server) survey { return survey{now: testTime, servers: servers} }

func TestParseMetrics(t *testing.T) {
	text := `# HELP etcd_server_id Server or member ID in hexadecimal format. 1 for 'server_id' label with current ID.
# TYPE etcd_server_id gauge
etcd_server_id{server_id="8e9e05c52164694d"} 1
# TYPE apiserver_request_total counter
apiserver_request_total{code="200"} ` + strings.Repeat("1", 50000) + `
# TYPE etcd_disk_wal_fsync_duration_seconds histogram
etcd_disk_wal_fsync_duration_seconds_bucket{le="0.001"} 50
etcd_disk_wal_fsync_duration_seconds_bucket{le="0.016"} 199
etcd_disk_wal_fsync_duration_seconds_bucket{le="+Inf"} 200
etcd_disk_wal_fsync_duration_seconds_sum 1
etcd_disk_wal_fsync_duration_seconds_count 200
# TYPE process_start_time_seconds gauge
process_start_time_seconds 1.7e+09
# TYPE process_start_time_seconds_other gauge
process_start_time_seconds_other 1
`
	s := withMetrics(t, "a", text)
	if len(s.metrics) != 3 {
		t.Errorf("%d metrics", len(s.metrics))
	}
	if ids := (etcdState{servers: []server{s}}).running(); !ids["8e9e05c52164694d"] {
		t.Errorf("running members %v", ids)
	}
	if started, ok := s.started(); !ok || started.Unix() != 1_700_000_000 {
		t.Errorf("started %v", started)
	}
	if took, ok := s.quantile(metricEtcdFsync, 0.99, 100); !ok || took != time.Millisecond {
		t.Errorf("quantile %v", took)
	}
	if _, ok := s.quantile(metricEtcdFsync, 0.99, 1000); ok {
		t.Error("a quantile of few values")
	}
	if took, ok := s.quantile(metricEtcdFsync, 0.999, 1); !ok || took != 16*time.Millisecond {
		t.Errorf("quantile %v of the last bucket", took)
	}
	if _, ok := s.value("etcd_server_has_leader"); ok {
		t.Error("a metric that is missing has a value")
	}
	if _, err := parseMetrics(strings.NewReader(strings.Repeat("x", 1<<20))); err == nil {
		t.Error("a line of a megabyte is accepted")
	}
}

func TestSkew(t *testing.T) {
	ahead, precision := skew(testTime.Add(10*time.Second), testTime, 200*time.Millisecond)
	if ahead != 10400*time.Millisecond || precision != 600*time.Millisecond {
		t.Errorf("ahead %v ± %v", ahead, precision)
	}
}

func TestFailedChecks(t *testing.T) {
	for _, test := range []struct {
		status     int
		text, want string
	}{
		{http.StatusOK, "[+]ping ok\nreadyz check passed\n", ""},
		{http.StatusInternalServerError, "[+]ping ok\n[-]etcd failed: reason withheld\n[-]shutdown failed: x\nreadyz check failed", "etcd shutdown"},
		{http.StatusServiceUnavailable, "waiting for members\nof etcd", "waiting for members"},
		{http.StatusInternalServerError, "", "status 500"},
		{http.StatusForbidden, "forbidden", ""},
	} {
		if got := strings.Join(failedChecks(test.status, test.text), " "); got != test.want {
			t.Errorf("%q: %q, want %q", test.text, got, test.want)
		}
	}
}

func TestDecideAPI(t *testing.T) {
	refused := server{address: "10.0.0.2:6443", err: errors.New("connection refused")}
	expect(t, decideAPI(surveyOf(server{address: "10.0.0.1:6443"})))
	expect(t, decideAPI(surveyOf(server{address: "10.0.0.1:6443"}, refused, server{address: "10.0.0.3:6443", failed: []string{"etcd"}})),
		"error: 10.0.0.2:6443 does not respond: connection refused", "error: 10.0.0.3:6443 is not ready: etcd")
	findings := decideAPI(surveyOf(refused))
	expect(t, findings, "error: does not respond")
	if !strings.Contains(findings[0].Breaks, "Nothing else was examined") {
		t.Errorf("breaks %q", findings[0].Breaks)
	}
	outside := surveyOf(server{address: "lb:443"})
	outside.isOutside = true
	expect(t, decideAPI(outside), "warning: are not reached from this host")
}

func TestDecideCertificates(t *testing.T) {
	at := func(d time.Duration) time.Time { return testTime.Add(d) }
	for _, test := range []struct {
		name string
		certificate
		want []string
	}{
		{"renewed in time", certificate{notAfter: at(200 * day), renewAt: at(80 * day)}, nil},
		{"renewed today", certificate{notAfter: at(120 * day), renewAt: at(-time.Hour)}, nil},
		{"late", certificate{notAfter: at(100 * day), renewAt: at(-20 * day)}, []string{"warning: x was to be renewed at 2026-04-11"}},
		{"very late", certificate{notAfter: at(3 * day), renewAt: at(-100 * day)}, []string{"error: was to be renewed"}},
		{"expired", certificate{notAfter: at(-day), renewAt: at(-100 * day)}, []string{"error: x has expired"}},
		{"nobody renews it", certificate{notAfter: at(100 * day)}, nil},
		{"nobody renews it and it expires", certificate{notAfter: at(20 * day)}, []string{"warning: x expires soon"}},
		{"nobody renews it and it expires now", certificate{notAfter: at(day)}, []string{"error: x expires soon"}},
		{"CA", certificate{notAfter: at(1000 * day), isCA: true}, nil},
		{"CA this year", certificate{notAfter: at(100 * day), isCA: true}, []string{"warning: x expires soon"}},
		{"CA this month", certificate{notAfter: at(20 * day), isCA: true}, []string{"error: x expires soon"}},
	} {
		test.certificate.name, test.breaks, test.fix = "x", "b", "f"
		t.Run(test.name, func(t *testing.T) {
			expect(t, decideCertificates(certificateState{testTime, []certificate{test.certificate}}), test.want...)
		})
	}
}

// The certificates of a data directory: those of servers are renewed, CAs are not, and old CAs do not matter.
func TestReadKeys(t *testing.T) {
	now := time.Now()
	dir := pki.Dir(t.TempDir())
	ca, err := dir.CA("ca", "test", now.Add(-3600*day)) // of ten years
	if err != nil {
		t.Fatal(err)
	}
	for name, age := range map[string]time.Duration{"new": 10 * day, "late": 300 * day, "later": 360 * day} {
		if _, err := dir.Leaf(name, ca, pki.User(name), now.Add(-age)); err != nil {
			t.Fatal(err)
		}
	}
	state, err := Cluster{Keys: dir}.readKeys(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	expect(t, decideCertificates(state), "warning: CA ca expires soon, and is not renewed by itself", "warning: certificate late was to be renewed at", "error: certificate later was to be renewed at")
}

func TestReadNodeKeys(t *testing.T) {
	now := time.Now()
	dir := pki.Dir(t.TempDir())
	ca, err := dir.CA("ca", "test", now)
	if err != nil {
		t.Fatal(err)
	}
	for name, age := range map[string]time.Duration{"client": 100 * day, "server": 350 * day} {
		pair, err := ca.Issue(pki.NodeClient("a"), now.Add(-age))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(string(dir), "kubelet-"+name+"-current.pem"), append(pair.Cert, pair.Key...), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	state, err := Node{KeyDir: string(dir)}.readNodeKeys(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	expect(t, decideCertificates(state), "warning: kubelet-server-current.pem was to be renewed at")
	if state, err = (Node{KeyDir: t.TempDir()}).readNodeKeys(t.Context()); err != nil || len(state.certificates) != 0 {
		t.Errorf("certificates %v, %v", state.certificates, err)
	}
}

func TestDecideServedCertificates(t *testing.T) {
	cert := func(age, left time.Duration) *x509.Certificate {
		return &x509.Certificate{NotBefore: testTime.Add(-age), NotAfter: testTime.Add(left)}
	}
	s := surveyOf(server{address: "a", certificate: cert(100*day, 265*day)}, server{address: "b", certificate: cert(350*day, 15*day)}, server{address: "c", err: errors.New("down")})
	expect(t, decideServedCertificates(s), "warning: the serving certificate of b was to be renewed")
	s.kubeconfig = cert(360*day, 5*day)
	expect(t, decideServedCertificates(s), "warning: the serving certificate of b", "error: the client certificate of the kubeconfig expires soon")
}

func TestDecideRequests(t *testing.T) {
	old := testTime.Add(-time.Hour)
	expect(t, decideRequests(requestState{testTime, []request{
		{"csr-1", certificatesv1.KubeletServingSignerName, old}, {"csr-2", certificatesv1.KubeletServingSignerName, old}, {"csr-3", "example.com/own", old},
		{"csr-4", "example.com/new", testTime},
	}}), "warning: 1 request waiting for approval for example.com/own: csr-3", "warning: 2 requests waiting|kubelet-serving: csr-1, csr-2")
}

func TestDecideClocks(t *testing.T) {
	at := func(address string, ahead time.Duration) server {
		return server{address: address, ahead: ahead, precision: 600 * time.Millisecond}
	}
	for _, test := range []struct {
		name    string
		servers []server
		want    []string
	}{
		{"equal", []server{at("a", 0), at("b", 500*time.Millisecond), at("c", -time.Second)}, nil},
		{"one is behind", []server{at("a", 0), at("b", 0), at("c", -10*time.Second)}, []string{"warning: the clock of server c is 10s behind"}},
		{"one is far ahead", []server{at("a", 0), at("b", time.Hour), at("c", 0)}, []string{"error: the clock of server b is 60 minutes ahead"}},
		{"this host", []server{at("a", time.Hour), at("b", time.Hour)}, []string{"error: the clock of this host|is 60 minutes behind"}},
		{"a single server", []server{at("a", -time.Minute)}, []string{"error: this host|1m0s ahead"}},
		{"none", nil, nil},
	} {
		t.Run(test.name, func(t *testing.T) { expect(t, decideClocks(surveyOf(test.servers...)), test.want...) })
	}
}

// memberServer is the server of a member of etcd.
func memberServer(t *testing.T, id, further string) server {
	return withMetrics(t, "10.0.0."+id+":6443", "# TYPE etcd_server_id gauge\netcd_server_id{server_id=\""+id+"\"} 1\n"+further)
}

func TestDecideEtcd(t *testing.T) {
	member := func(id string) cluster.Server {
		return cluster.Server{Member: etcd.Member{ID: id, Name: "host" + id, PeerURL: "https://10.0.0." + id + ":2380"}}
	}
	one, two, three := member("1"), member("2"), member("3")
	learner, added := member("4"), cluster.Server{Member: etcd.Member{ID: "5", PeerURL: "https://10.0.0.5:2380", IsLearner: true}}
	learner.IsLearner = true
	const leaderless = "# TYPE etcd_server_has_leader gauge\netcd_server_has_leader 0\n"
	const alarm = "# TYPE etcd_debugging_server_alarms gauge\netcd_debugging_server_alarms{server_id=\"1\",alarm_type=\"NOSPACE\"} 1\n"
	const gone = "# TYPE etcd_debugging_server_alarms gauge\netcd_debugging_server_alarms{server_id=\"1\",alarm_type=\"NOSPACE\"} 0\n"
	changes := "# TYPE etcd_server_leader_changes_seen_total counter\netcd_server_leader_changes_seen_total 50\n# TYPE process_start_time_seconds gauge\nprocess_start_time_seconds 1.7776332e+09\n"
	for _, test := range []struct {
		name    string
		members []cluster.Server
		servers []server
		want    []string
	}{
		{"alone", nil, []server{memberServer(t, "1", gone)}, nil},
		{"three", []cluster.Server{one, two, three}, []server{memberServer(t, "1", ""), memberServer(t, "2", ""), memberServer(t, "3", "")}, nil},
		{"one of three is lost", []cluster.Server{one, two, three}, []server{memberServer(t, "1", ""), memberServer(t, "3", "")}, []string{"error: 1 of 3 servers do not respond: host2 at https://10.0.0.2:2380"}},
		{
			"one of five is lost", []cluster.Server{one, two, three, member("6"), member("7")},
			[]server{memberServer(t, "1", ""), memberServer(t, "2", ""), memberServer(t, "3", ""), memberServer(t, "6", "")}, []string{"warning: 1 of 5 servers do not respond"},
		},
		{"two", []cluster.Server{one, two}, []server{memberServer(t, "1", ""), memberServer(t, "2", "")}, []string{"warning: 2 servers vote, an even number"}},
		{"a learner", []cluster.Server{one, learner}, []server{memberServer(t, "1", "")}, []string{"warning: server host4 has not caught up"}},
		{"added only", []cluster.Server{one, added}, []server{memberServer(t, "1", "")}, []string{"warning: has not started: https://10.0.0.5:2380"}},
		{"no leader", nil, []server{memberServer(t, "1", leaderless)}, []string{"error: 10.0.0.1:6443 has no leader"}},
		{"external etcd", nil, []server{withMetrics(t, "a", leaderless)}, nil},
		{"alarm", nil, []server{memberServer(t, "1", alarm)}, []string{"error: has the alarm NOSPACE"}},
		{"leader changes", nil, []server{memberServer(t, "1", changes)}, []string{"warning: has changed 50 times in 60 minutes"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			now := time.Unix(1_777_633_200+3600, 0)
			expect(t, decideEtcd(etcdState{now: now, members: test.members, servers: test.servers}), test.want...)
		})
	}
	partial := etcdState{now: testTime, members: []cluster.Server{one, two, three}, servers: []server{memberServer(t, "1", "")}, isPartial: true}
	expect(t, decideEtcd(partial))
}

func TestDecideEtcdDisk(t *testing.T) {
	// The buckets are those of etcd around its limit of 10 ms.
	histogram := func(within8, within16, within1024, count string) string {
		const metric = "etcd_disk_wal_fsync_duration_seconds"
		return "# TYPE " + metric + " histogram\n" + metric + "_bucket{le=\"0.008\"} " + within8 + "\n" + metric + "_bucket{le=\"0.016\"} " + within16 + "\n" + metric + "_bucket{le=\"1.024\"} " +
			within1024 + "\n" + metric + "_bucket{le=\"+Inf\"} " + count + "\n" + metric + "_sum 1\n" + metric + "_count " + count + "\n"
	}
	for _, test := range []struct {
		name, text string
		want       []string
	}{
		{"fast", histogram("1000", "1000", "1000", "1000"), nil},
		{"perhaps within the limit", histogram("900", "1000", "1000", "1000"), nil},
		{"slow", histogram("900", "950", "1000", "1000"), []string{"warning: 1 of 100 writes of etcd's log at a takes more than 16ms; etcd needs 99 within 10ms"}},
		{"very slow", histogram("900", "950", "960", "1000"), []string{"error: takes more than 1.024s"}},
		{"just started", histogram("5", "5", "5", "10"), nil},
		{"external", "", nil},
	} {
		t.Run(test.name, func(t *testing.T) { expect(t, decideEtcdDisk(surveyOf(withMetrics(t, "a", test.text))), test.want...) })
	}
}

func TestDecideEtcdSize(t *testing.T) {
	sizes := func(total, inUse, quota string) string {
		return "# TYPE etcd_mvcc_db_total_size_in_bytes gauge\netcd_mvcc_db_total_size_in_bytes " + total + "\n# TYPE etcd_mvcc_db_total_size_in_use_in_bytes gauge\n" +
			"etcd_mvcc_db_total_size_in_use_in_bytes " + inUse + "\n# TYPE etcd_server_quota_backend_bytes gauge\netcd_server_quota_backend_bytes " + quota + "\n"
	}
	for _, test := range []struct {
		name, text string
		want       []string
	}{
		{"small", sizes("1e8", "9e7", "8e9"), nil},
		{"nearly full", sizes("7e9", "7e9", "8e9"), []string{"warning: 88% of its quota"}},
		{"full", sizes("7.9e9", "7.9e9", "8e9"), []string{"error: 99% of its quota"}},
		{"unused", sizes("4e9", "1e9", "8e9"), []string{"warning: 3.7 GiB, of which 2.8 GiB are unused"}},
		{"not known", "", nil},
	} {
		t.Run(test.name, func(t *testing.T) { expect(t, decideEtcdSize(surveyOf(withMetrics(t, "a", test.text))), test.want...) })
	}
}

func TestDecideSnapshots(t *testing.T) {
	saving := func(schedule string, started, last time.Duration, failed string) server {
		text := "# TYPE process_start_time_seconds gauge\nprocess_start_time_seconds " + unixText(testTime.Add(-started)) + "\n# TYPE skiff_snapshots_total counter\n" +
			"skiff_snapshots_total{result=\"error\"} " + failed + "\n# TYPE skiff_snapshot_last_success_timestamp_seconds gauge\nskiff_snapshot_last_success_timestamp_seconds "
		if last == 0 {
			text += "0\n"
		} else {
			text += unixText(testTime.Add(-last)) + "\n"
		}
		s := withMetrics(t, "a", text)
		s.flags = map[string]string{"snapshot-schedule": schedule}
		return s
	}
	const hourly = "0 * * * *"
	for _, test := range []struct {
		name string
		server
		want []string
	}{
		{"in time", saving(hourly, 100*time.Hour, 30*time.Minute, "0"), nil},
		{"just started", saving(hourly, 10*time.Minute, 0, "0"), nil},
		{"overdue", saving(hourly, 100*time.Hour, 5*time.Hour, "4"), []string{"error: was due at|the last one was saved at 2026-05-01 07:00 UTC, and 4 failed"}},
		{"never saved", saving(hourly, 100*time.Hour, 0, "99"), []string{"error: none was saved since the server was started"}},
		{"one failed", saving(hourly, 100*time.Hour, 30*time.Minute, "1"), []string{"warning: 1 snapshot of a failed"}},
		{"no schedule", saving("", 100*time.Hour, 0, "0"), []string{"warning: no server saves snapshots on schedule"}},
		{"no schedule, but by hand", saving("", 100*time.Hour, 3*day, "0"), nil},
		{"no schedule, long ago", saving("", 100*day, 30*day, "0"), []string{"warning: the last one was saved at 2026-04-01"}},
		{"not skiff", server{address: "a"}, nil},
	} {
		t.Run(test.name, func(t *testing.T) { expect(t, decideSnapshots(surveyOf(test.server)), test.want...) })
	}
}

func aNode(name string, change func(*nodeState)) nodeState {
	n := nodeState{name: name, ready: corev1.ConditionTrue, since: testTime.Add(-day), version: "v1.37.1+skiff.0.1.0", renewed: testTime.Add(-5 * time.Second)}
	if change != nil {
		change(&n)
	}
	return n
}

func TestDecideNodes(t *testing.T) {
	var many []nodeState
	for i := range 5000 {
		many = append(many, aNode("n"+string(rune('a'+i%26)), func(n *nodeState) { n.ready = corev1.ConditionUnknown }))
	}
	for _, test := range []struct {
		name  string
		nodes []nodeState
		want  []string
	}{
		{"fine", []nodeState{aNode("a", nil), aNode("b", nil)}, nil},
		{
			"not ready", []nodeState{aNode("a", func(n *nodeState) { n.ready, n.message = corev1.ConditionFalse, "container runtime is down" })},
			[]string{"error: 1 node not ready: a since 2026-04-30 12:00 UTC (container runtime is down)"},
		},
		{"lost", []nodeState{aNode("a", func(n *nodeState) { n.ready = corev1.ConditionUnknown })}, []string{"error: 1 node lost: their kubelets do not renew their leases: a since"}},
		{"thousands are lost", many, []string{"error: 5000 nodes lost|and 4995 more"}},
		{"disk pressure", []nodeState{aNode("a", func(n *nodeState) { n.pressures = []string{"DiskPressure", "Custom"} })}, []string{"error: 1 node with the condition DiskPressure: a"}},
		{"clock ahead", []nodeState{aNode("a", func(n *nodeState) { n.renewed = testTime.Add(20 * time.Second) })}, []string{"warning: a at least 20s ahead"}},
		{"clock behind", []nodeState{aNode("a", func(n *nodeState) { n.renewed = testTime.Add(-time.Hour) })}, []string{"error: a about 60 minutes behind"}},
		{"old lease of a lost node", []nodeState{aNode("a", func(n *nodeState) { n.ready, n.renewed = corev1.ConditionUnknown, testTime.Add(-time.Hour) })}, []string{"error: lost"}},
		{"newer kubelet", []nodeState{aNode("a", func(n *nodeState) { n.version = "v1.38.0" })}, []string{"error: 1 node newer than an API server, 1.37: a has v1.38.0"}},
		{"old kubelets", []nodeState{aNode("a", func(n *nodeState) { n.version = "v1.34.9" }), aNode("b", func(n *nodeState) { n.version = "v1.33.0" })}, []string{"error: b has v1.33.0"}},
		{"unknown version", []nodeState{aNode("a", func(n *nodeState) { n.version = "dev" })}, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			expect(t, decideNodes(nodesState{now: testTime, nodes: test.nodes, versions: []string{"v1.37.1"}}), test.want...)
		})
	}
}

func TestDecideServerVersions(t *testing.T) {
	at := func(address, version string) server { return server{address: address, version: version} }
	expect(t, decideServerVersions(surveyOf(at("a", "v1.37.1"), at("b", "v1.37.1"))))
	expect(t, decideServerVersions(surveyOf(at("a", "v1.37.1"), at("b", "v1.36.2"))), "warning: v1.36.2 at b, v1.37.1 at a")
	expect(t, decideServerVersions(surveyOf(at("a", "v1.37.1"), at("b", "v1.35.2"))), "error: different versions")
}

func TestDecideLeaders(t *testing.T) {
	expect(t, decideLeaders(leadersState{testTime, []leader{
		{"kube-controller-manager", "a", testTime.Add(-3 * time.Second), 15 * time.Second}, {"kube-scheduler", "b", testTime.Add(-time.Hour), 15 * time.Second},
	}}), "error: nobody leads as kube-scheduler|2026-05-01 11:00 UTC, by b")
	single := surveyOf(server{flags: map[string]string{"without": "scheduler", "etcd-servers": ""}})
	if !single.runsAlone("controllers") || single.runsAlone("scheduler") {
		t.Error("a server runs what it is not started without")
	}
	for name, s := range map[string]survey{
		"several servers": surveyOf(single.servers[0], single.servers[0]), "external etcd": surveyOf(server{flags: map[string]string{"without": "", "etcd-servers": "https://a"}}),
		"no server of skiff": surveyOf(server{}),
	} {
		if s.runsAlone("controllers") {
			t.Errorf("%s: a lease does not count", name)
		}
	}
}

func TestDecideNodeDisks(t *testing.T) {
	const gib = 1 << 30
	expect(t, decideNodeDisks([]nodeDisk{
		{"a", evict.NodeFsAvailable, evict.Observation{Available: 50 * gib, Capacity: 100 * gib}}, {"b", evict.NodeFsAvailable, evict.Observation{Available: 12 * gib, Capacity: 100 * gib}},
		{"b", evict.ImageFsAvailable, evict.Observation{Available: 30 * gib, Capacity: 100 * gib}},
	}), "warning: 1 node near the threshold nodefs.available: b has 12.0 GiB of 100 GiB left")
}

func TestSystemPods(t *testing.T) {
	pod := func(change func(*corev1.Pod)) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", CreationTimestamp: metav1.NewTime(testTime.Add(-time.Hour))}, Status: corev1.PodStatus{Phase: corev1.PodRunning}}
		change(p)
		return p
	}
	condition := func(kind corev1.PodConditionType, status corev1.ConditionStatus, reason string, age time.Duration) corev1.PodCondition {
		return corev1.PodCondition{Type: kind, Status: status, Reason: reason, LastTransitionTime: metav1.NewTime(testTime.Add(-age))}
	}
	waiting := func(reason string) []corev1.ContainerStatus {
		return []corev1.ContainerStatus{{State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason}}}}
	}
	for _, test := range []struct {
		name string
		pod  *corev1.Pod
		want []string
	}{
		{"ready", pod(func(p *corev1.Pod) {
			p.Status.Conditions = []corev1.PodCondition{condition(corev1.PodReady, corev1.ConditionTrue, "", time.Hour)}
		}), nil},
		{"done", pod(func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }), nil},
		{"ends", pod(func(p *corev1.Pod) { p.DeletionTimestamp = new(metav1.Now()) }), nil},
		{"starts", pod(func(p *corev1.Pod) {
			p.Status.Conditions = []corev1.PodCondition{condition(corev1.PodReady, corev1.ConditionFalse, "", time.Minute)}
		}), nil},
		{"crashes", pod(func(p *corev1.Pod) {
			p.Status.Conditions = []corev1.PodCondition{condition(corev1.PodReady, corev1.ConditionFalse, "", time.Minute)}
			p.Status.ContainerStatuses = waiting("CrashLoopBackOff")
		}), []string{"error: 1 pod of kube-system not running: p (CrashLoopBackOff)"}},
		{"without image", pod(func(p *corev1.Pod) {
			p.Status.InitContainerStatuses = waiting("ImagePullBackOff")
		}), []string{"error: p (ImagePullBackOff)"}},
		{"unschedulable", pod(func(p *corev1.Pod) {
			p.Status.Phase = corev1.PodPending
			p.Status.Conditions = []corev1.PodCondition{condition(corev1.PodScheduled, corev1.ConditionFalse, "Unschedulable", time.Hour)}
		}), []string{"error: p (Unschedulable)"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := systemPods{now: testTime}
			if one, ok := newSystemPod(test.pod); ok {
				s.pods = append(s.pods, one)
			}
			expect(t, decideSystemPods(s), test.want...)
		})
	}
}

func TestDecideAPIServices(t *testing.T) {
	expect(t, decideAPIServices(nil))
	expect(t, decideAPIServices([]apiService{
		{"v1beta1.metrics.k8s.io", "MissingEndpoints", "no addresses", testTime.Add(-time.Hour)}, {"v1.custom.example.com", "FailedDiscoveryCheck", "status 503", testTime.Add(-2 * time.Hour)},
	}), "error: 2 APIServices not available: v1beta1.metrics.k8s.io (MissingEndpoints), v1.custom.example.com (FailedDiscoveryCheck); status 503")
}

func TestDecideDeprecated(t *testing.T) {
	call := func(group, resource, release, value string) string {
		return "apiserver_requested_deprecated_apis{group=\"" + group + "\",removed_release=\"" + release + "\",resource=\"" + resource + "\",subresource=\"\",version=\"v1beta1\"} " + value + "\n"
	}
	text := "# TYPE apiserver_requested_deprecated_apis gauge\n" + call("flowcontrol.apiserver.k8s.io", "flowschemas", "1.40", "1") + call("", "componentstatuses", "", "1") +
		call("policy", "podsecuritypolicies", "1.9", "1") + call("batch", "cronjobs", "1.41", "0")
	expect(t, decideDeprecated(surveyOf(withMetrics(t, "a", text), withMetrics(t, "b", text))),
		"warning: podsecuritypolicies.policy v1beta1", "warning: flowschemas.flowcontrol.apiserver.k8s.io v1beta1")
}

func TestDecideWebhooks(t *testing.T) {
	rules := []admissionregistrationv1.RuleWithOperations{{
		Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create, admissionregistrationv1.Update},
		Rule:       admissionregistrationv1.Rule{APIGroups: []string{"apps"}, Resources: []string{"deployments"}},
	}}
	s := webhookState{now: testTime}
	ignore := admissionregistrationv1.Ignore
	s.add("validating webhook a of b", nil, rules, admissionregistrationv1.WebhookClientConfig{Service: &admissionregistrationv1.ServiceReference{Namespace: "n", Name: "s"}})
	s.add("mutating webhook c of d", &ignore, rules, admissionregistrationv1.WebhookClientConfig{URL: new("https://example.com")})
	definition := &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: "widgets.example.com"}}
	s.addConversion(definition)
	definition.Spec.Conversion = &apiextensionsv1.CustomResourceConversion{Strategy: apiextensionsv1.WebhookConverter, Webhook: &apiextensionsv1.WebhookConversion{
		ClientConfig: &apiextensionsv1.WebhookClientConfig{Service: &apiextensionsv1.ServiceReference{Namespace: "n", Name: "s", Port: new(int32(8443))}},
	}}
	s.addConversion(definition)
	if len(s.hooks) != 3 || s.hooks[0].port != 443 || s.hooks[2].port != 8443 || s.hooks[1].isRequired || !s.hooks[0].isRequired {
		t.Fatalf("hooks %+v", s.hooks)
	}
	expect(t, decideWebhooks(s))
	for i := range s.hooks {
		s.hooks[i].unavailable = "endpoints are missing"
	}
	findings := decideWebhooks(s)
	expect(t, findings, "error: validating webhook a of b has no server: endpoints are missing", "error: conversion webhook of widgets.example.com has no server")
	if findings[0].Breaks != "requests: CREATE and UPDATE of deployments in apps" {
		t.Errorf("breaks %q", findings[0].Breaks)
	}
	expect(t, decideWebhooks(webhookState{testTime, []hook{
		{name: "a", isRequired: true, breaks: "b", caExpires: testTime.Add(100 * day)}, {name: "b", isRequired: true, breaks: "b", caExpires: testTime.Add(20 * day)},
		{name: "c", isRequired: true, breaks: "b", caExpires: testTime.Add(-day)}, {name: "d", breaks: "b", caExpires: testTime.Add(-day)},
	}}), "warning: CA bundle of the b expires", "error: CA bundle of the c expires", "warning: CA bundle of the d expires")
	var many []hook
	for range 500 {
		many = append(many, hook{name: "x", isRequired: true, breaks: "b", unavailable: "gone"})
	}
	if findings := decideWebhooks(webhookState{testTime, many}); len(findings) != maxFindings+1 || !strings.Contains(findings[maxFindings].Problem, "480 more") {
		t.Errorf("%d findings", len(findings))
	}
}

func TestDecideNodeView(t *testing.T) {
	ready := aNode("a", nil)
	expect(t, decideNodeView(nodeView{now: testTime, servers: []server{{address: "s"}}, node: &ready}))
	expect(t, decideNodeView(nodeView{now: testTime}), "error: knows no API server")
	expect(t, decideNodeView(nodeView{now: testTime, servers: []server{{address: "s"}}, err: errors.New("not found")}), "error: cannot read its own object: not found")
	lost := aNode("a", func(n *nodeState) { n.ready = corev1.ConditionUnknown })
	expect(t, decideNodeView(nodeView{now: testTime, servers: []server{{address: "s", err: errors.New("refused")}, {address: "t"}}, node: &lost}), "error: s does not respond", "error: 1 node lost")
}
