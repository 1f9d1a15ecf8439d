package scheduler

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	configv1 "k8s.io/kube-scheduler/config/v1"

	"skiff/internal/scheduler/decision"
	"skiff/internal/scheduler/plugins"
	"skiff/internal/scheduler/schedulertest"
	"skiff/internal/scheduler/snapshot/snapshottest"
)

func TestConfiguration(t *testing.T) {
	c, err := ParseConfiguration([]byte(`
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
podInitialBackoffSeconds: 2
podMaxBackoffSeconds: 20
profiles:
- schedulerName: default-scheduler
- schedulerName: packing
  plugins:
    score:
      disabled: [{name: NodeResourcesBalancedAllocation}, {name: ImageLocality}]
      enabled: [{name: NodeResourcesFit, weight: 7}]
    filter:
      disabled: [{name: TaintToleration}, {name: InterPodAffinity}]
    postFilter:
      disabled: [{name: "*"}]
  pluginConfig:
  - name: NodeResourcesFit
    args: {scoringStrategy: {type: MostAllocated}}
  - name: NodeAffinity
    args: {addedAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: pool, operator: In, values: [batch]}]}]}}}
`))
	if err != nil {
		t.Fatal(err)
	}
	profiles, err := profilesOf(c)
	if err != nil {
		t.Fatal(err)
	}
	packing := profiles["packing"]
	if packing.Preemption != nil || profiles["default-scheduler"].Preemption == nil {
		t.Error("preemption is not switched off, or for all")
	}
	s := snapshottest.New(t, []*corev1.Node{
		schedulertest.TestNode("full", schedulertest.NodeLabel("pool", "batch"), schedulertest.Taint("k", "", corev1.TaintEffectNoSchedule)), schedulertest.TestNode("empty", schedulertest.NodeLabel("pool", "batch")), schedulertest.TestNode("other"),
	}, schedulertest.TestPod("1", schedulertest.OnNode("full"), schedulertest.RequestingCPU("2")))
	d, err := decision.Schedule(s, snapshottest.PodInfo(t, schedulertest.TestPod("p", schedulertest.RequestingCPU("1"), schedulertest.WithAffinity(corev1.LabelHostname, "nobody", "there"))), packing)
	if err != nil || d.Node != "full" {
		t.Errorf("packing chose %q, %v", d.Node, err)
	}
	verdicts, _ := d.Explain()
	for _, v := range verdicts {
		if v.Node == "other" && (v.Refusal == nil || v.Refusal.Reasons[0] != "node(s) didn't match scheduler-enforced node affinity") {
			t.Errorf("other: %+v", v.Refusal)
		}
		if _, has := v.Scores[plugins.BalancedAllocationName]; has {
			t.Error("a plugin that is switched off scores")
		}
		// (25+0)/2 for the pod alone: memory is hardly asked for.
		if v.Node == "empty" && v.Scores[plugins.NodeResourcesFitName] != 7*12 {
			t.Errorf("weight 7 gives %d", v.Scores[plugins.NodeResourcesFitName])
		}
	}
	initial, most := backoffOf(c)
	if initial.Seconds() != 2 || most.Seconds() != 20 {
		t.Errorf("backoff %v %v", initial, most)
	}
}

func TestExtendersResourcesAreIgnored(t *testing.T) {
	c, err := ParseConfiguration([]byte(`
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
extenders: [{urlPrefix: "http://localhost", managedResources: [{name: example.com/theirs, ignoredByScheduler: true}, {name: example.com/ours}]}]
`))
	if err != nil {
		t.Fatal(err)
	}
	profiles, err := profilesOf(c)
	if err != nil {
		t.Fatal(err)
	}
	s := snapshottest.New(t, []*corev1.Node{schedulertest.TestNode("a")})
	if got := refusalsOf(t, s, schedulertest.TestPod("p", schedulertest.Requesting("example.com/theirs", "1")), profiles["default-scheduler"]); len(got) != 0 {
		t.Errorf("refused by %v", got)
	}
	if got := refusalsOf(t, s, schedulertest.TestPod("p", schedulertest.Requesting("example.com/ours", "1")), profiles["default-scheduler"]); got["a"] != "Insufficient example.com/ours" {
		t.Errorf("refused by %v", got)
	}
}

func TestConfigurationOfAnotherKind(t *testing.T) {
	for _, text := range []string{"kind: Pod", "", "apiVersion: kubescheduler.config.k8s.io/v1", "apiVersion: kubescheduler.config.k8s.io/v1beta3\nkind: KubeSchedulerConfiguration"} {
		if _, err := ParseConfiguration([]byte(text)); err == nil || !strings.Contains(err.Error(), "want KubeSchedulerConfiguration of kubescheduler.config.k8s.io/v1") {
			t.Errorf("%q: %v", text, err)
		}
	}
	if _, err := ParseConfiguration([]byte("{")); err == nil {
		t.Error("what is not YAML was read")
	}
}

func TestReadConfiguration(t *testing.T) {
	path := filepath.Join(t.TempDir(), "scheduler.yaml")
	if _, err := ReadConfiguration(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file that is not there: %v", err)
	}
	if err := os.WriteFile(path, schedulertest.Configuration("podInitialBackoffSeconds: 3"), 0o600); err != nil {
		t.Fatal(err)
	}
	if c, err := ReadConfiguration(path); err != nil || *c.PodInitialBackoffSeconds != 3 {
		t.Errorf("%+v, %v", c, err)
	}
}

// A configuration made by code is looked at as one from a file is.
func TestSchedulerRefusesBadConfigurations(t *testing.T) {
	zero := int32(0)
	for _, c := range []*configv1.KubeSchedulerConfiguration{
		{Parallelism: &zero},
		{Profiles: []configv1.KubeSchedulerProfile{{PluginConfig: []configv1.PluginConfig{{Name: plugins.NodeResourcesFitName, Args: runtime.RawExtension{Object: &configv1.NodeResourcesFitArgs{ScoringStrategy: &configv1.ScoringStrategy{Type: "Best"}}}}}}}},
		{Extenders: []configv1.Extender{{TLSConfig: &configv1.ExtenderTLSConfig{CAFile: "/does/not/exist"}}}},
	} {
		if _, err := newScheduler(c, nil); err == nil {
			t.Errorf("%+v was taken", c)
		}
	}
	if s, err := newScheduler(nil, nil); err != nil || len(s.profiles) != 1 || s.profiles[corev1.DefaultSchedulerName] == nil || s.extenders != nil {
		t.Errorf("without a configuration: %+v, %v", s.profiles, err)
	}
}

// Seconds beyond what a duration can count are as many as it can.
func TestBackoffs(t *testing.T) {
	for fields, want := range map[string][2]time.Duration{
		"":                                 {time.Second, 10 * time.Second},
		"podInitialBackoffSeconds: 10":     {10 * time.Second, 10 * time.Second},
		"podMaxBackoffSeconds: 1":          {time.Second, time.Second},
		"podMaxBackoffSeconds: 9223372036": {time.Second, 9223372036 * time.Second},
		"podMaxBackoffSeconds: 9223372037": {time.Second, 9223372036 * time.Second},
		"podInitialBackoffSeconds: 9223372036854775807\npodMaxBackoffSeconds: 9223372036854775807": {9223372036 * time.Second, 9223372036 * time.Second},
	} {
		initial, most := backoffOf(parsed(t, fields))
		if got := [2]time.Duration{initial, most}; got != want {
			t.Errorf("%s: %v, want %v", fields, got, want)
		}
	}
}
