package system

import (
	_ "embed"
	"log/slog"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	celmetrics "k8s.io/apiserver/pkg/cel/metrics"

	"skiff/internal/api"
	"skiff/internal/client"
	"skiff/internal/config"
	"skiff/internal/controller"
	"skiff/internal/controllers"
	"skiff/internal/health"
	kubeletmetrics "skiff/internal/kubelet/metrics"
	"skiff/internal/kubelet/usage"
	"skiff/internal/scheduler"
	"skiff/internal/store/etcd"
)

// upstreamMetrics are the stable and beta metrics that upstream's sources declare; test/upstream/metrics writes the list. Those in
// absentMetrics have no meaning in skiff, for the reason that follows the name. test/e2e compares the types.
var (
	//go:embed testdata/upstream-metrics.txt
	upstreamMetrics string
	//go:embed testdata/absent-metrics.txt
	absentMetrics string
)

// Every stable and beta metric of upstream's API server, controller manager, scheduler and kubelet exists with its labels, or is absent for a
// reason.
func TestUpstreamMetrics(t *testing.T) {
	described := describedMetrics(t)
	absent := map[string]string{}
	for line := range strings.Lines(absentMetrics) {
		if !strings.HasPrefix(line, "#") {
			name, reason, _ := strings.Cut(strings.TrimSpace(line), " ")
			absent[name] = reason
		}
	}
	listed := map[string]bool{}
	for line := range strings.Lines(upstreamMetrics) {
		fields := strings.Fields(line)
		if strings.HasPrefix(line, "#") || len(fields) < 4 {
			continue
		}
		name, want := fields[3], ""
		if len(fields) > 4 {
			want = fields[4]
		}
		listed[name] = true
		labels, exists := described[name]
		switch {
		case exists && absent[name] != "":
			t.Errorf("%s exists, but is listed as absent: %s", name, absent[name])
		case !exists && absent[name] == "":
			t.Errorf("%s does not exist and is not listed as absent", name)
		case exists && labels != want:
			t.Errorf("%s has the labels %q, want %q", name, labels, want)
		}
	}
	for name := range absent {
		if !listed[name] {
			t.Errorf("%s is listed as absent, but upstream does not have it", name)
		}
	}
	if len(listed) < 95 {
		t.Errorf("only %d metrics are listed", len(listed))
	}
}

var descPattern = regexp.MustCompile(`fqName: "([^"]*)".* variableLabels: \{([^}]*)\}`)

// describedMetrics are the labels of all metrics of a server and a node by name, sorted and joined with commas.
func describedMetrics(t *testing.T) map[string]string {
	t.Helper()
	registry := newRegistry(nil)
	server, _ := startAPIServerWith(t, testConfig(t), observed{registry: registry})
	local, err := client.NewLocal(server.Local(componentsUser), api.Scheme(), api.Named())
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	informers, events := client.NewInformers(local), client.NewEventBroadcaster(local)
	counted, err := controller.NewMetrics(registry)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := controllers.New(controllers.Config{Client: local, Informers: informers, Events: events, Metrics: counted, Log: log}); err != nil {
		t.Fatal(err)
	}
	scheduled, err := scheduler.NewMetrics(registry)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := scheduler.New(scheduler.Config{Client: local, Informers: informers, Events: events, Metrics: scheduled, Log: log}); err != nil {
		t.Fatal(err)
	}
	node := kubeletmetrics.New("node")
	all := map[string]string{}
	for _, c := range []prometheus.Collector{
		registry, node.All, node.Probes, kubeletmetrics.NodeCollector{}, usage.ResourceMetrics{}, (*etcd.Store)(nil), scheduler.PodResources(informers), health.NewSLIs(),
	} {
		descs := make(chan *prometheus.Desc)
		go func() {
			c.Describe(descs)
			close(descs)
		}()
		for desc := range descs {
			match := descPattern.FindStringSubmatch(desc.String())
			if match == nil {
				t.Fatalf("cannot parse %s", desc)
			}
			labels := strings.Split(match[2], ",")
			slices.Sort(labels)
			all[match[1]] = strings.Join(labels, ",")
		}
	}
	// Descriptions do not name constant labels, and libraries are only gathered. That of CEL expressions is linked with custom resources.
	_ = celmetrics.Metrics
	families, err := append(prometheus.Gatherers{registry}, libraryMetrics(config.Etcd{})...).Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		var labels []string
		for _, pair := range family.Metric[0].Label {
			labels = append(labels, pair.GetName())
		}
		slices.Sort(labels)
		all[family.GetName()] = strings.Join(labels, ",")
	}
	return all
}
