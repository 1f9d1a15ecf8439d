package evict

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"skiff/internal/podstate"
)

var start = time.Date(2026, 11, 15, 12, 0, 0, 0, time.UTC)

// list makes a list of resources from "cpu=1 memory=1Gi".
func list(text string) corev1.ResourceList {
	l := corev1.ResourceList{}
	for _, pair := range strings.Fields(text) {
		name, value, _ := strings.Cut(pair, "=")
		l[corev1.ResourceName(name)] = resource.MustParse(value)
	}
	return l
}

// pod makes a pod of one container c.
func pod(name, requests, limits string, change ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name), Generation: 3},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Resources: corev1.ResourceRequirements{Requests: list(requests), Limits: list(limits)}}}},
	}
	for _, f := range change {
		f(p)
	}
	return p
}

func priority(n int32) func(*corev1.Pod) { return func(p *corev1.Pod) { p.Spec.Priority = &n } }

func grace(n int64) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Spec.TerminationGracePeriodSeconds = &n }
}

func emptyDir(name, limit string, medium corev1.StorageMedium) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		q := resource.MustParse(limit)
		p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{SizeLimit: &q, Medium: medium}}})
	}
}

const mebi = 1 << 20

func mustParse(t *testing.T, hard, soft, graces, reclaim map[string]string) []Threshold {
	t.Helper()
	all, err := Parse(hard, soft, graces, reclaim, false)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func memoryLeft(mib int64) Usage {
	return Usage{Signals: map[Signal]Observation{MemoryAvailable: {Available: mib * mebi, Capacity: 1000 * mebi}}, Pods: map[types.UID]PodUsage{}}
}

// TestMemoryPressure follows a node that gets under memory pressure and recovers.
func TestMemoryPressure(t *testing.T) {
	c := Config{
		Thresholds: mustParse(t, map[string]string{"memory.available": "100Mi"}, map[string]string{"memory.available": "30%"}, map[string]string{"memory.available": "1m"},
			map[string]string{"memory.available": "50Mi"}),
		PressureTransitionPeriod: 5 * time.Minute, MaxPodGracePeriodSeconds: 60,
	}
	pods := []*corev1.Pod{pod("a", "memory=10Mi", "", grace(30)), pod("b", "memory=10Mi", "", grace(90))}
	steps := []struct {
		after     time.Duration
		left      int64
		condition bool
		evicts    string
	}{
		{0, 500, false, ""},
		{10 * time.Second, 280, true, ""},          // below the soft threshold, within its grace
		{50 * time.Second, 290, true, ""},          // still
		{70 * time.Second, 290, true, "a with 30"}, // the grace is over
		{80 * time.Second, 320, true, "a with 30"}, // above it, but not by as much as must be reclaimed
		{90 * time.Second, 360, true, ""},          // enough
		{2 * time.Minute, 90, true, "a with 1"},    // below the hard threshold: at once
		{130 * time.Second, 500, true, ""},         // all is well, the condition stays for a while
		{130*time.Second + 4*time.Minute, 500, true, ""},
		{130*time.Second + 5*time.Minute, 500, false, ""},
		{130*time.Second + 6*time.Minute, 290, true, ""}, // a new grace
	}
	state := State{}
	for i, step := range steps {
		u := memoryLeft(step.left)
		u.Pods["a"], u.Pods["b"] = PodUsage{Memory: 100 * mebi}, PodUsage{Memory: 50 * mebi}
		var d Decision
		state, d = Decide(c, state, u, pods, start.Add(step.after))
		if got := slices.Contains(d.Conditions, corev1.NodeMemoryPressure); got != step.condition {
			t.Errorf("step %d: pressure %v", i, got)
		}
		got := ""
		if len(d.Candidates) > 0 {
			got = fmt.Sprintf("%s with %d", d.Candidates[0].Pod.Name, d.Candidates[0].Grace)
		}
		if got != step.evicts {
			t.Errorf("step %d: evicts %q, want %q", i, got, step.evicts)
		}
	}
}

func TestRanking(t *testing.T) {
	tests := map[string]struct {
		signal   Signal
		separate bool
		pods     []*corev1.Pod
		usage    map[types.UID]PodUsage
		want     string
	}{
		"memory: over their request first, then the less important, then the greediest": {
			MemoryAvailable, false,
			[]*corev1.Pod{
				pod("within", "memory=100Mi", "", priority(-5)), pod("important", "memory=10Mi", "", priority(100)), pod("little", "memory=10Mi", ""),
				pod("much", "memory=10Mi", ""), pod("none", "", ""),
			},
			map[types.UID]PodUsage{
				"within": {Memory: 90 * mebi}, "important": {Memory: 900 * mebi}, "little": {Memory: 20 * mebi}, "much": {Memory: 60 * mebi}, "none": {Memory: 55 * mebi},
			},
			"[none much little important within]",
		},
		"a pod nothing is known of": {
			MemoryAvailable, false, []*corev1.Pod{pod("known", "", ""), pod("unknown", "memory=1Gi", "", priority(1000))},
			map[types.UID]PodUsage{"known": {Memory: 900 * mebi}}, "[unknown known]",
		},
		"processes: the less important, then the most": {
			PIDAvailable, false, []*corev1.Pod{pod("few", "", ""), pod("many", "", ""), pod("important", "", "", priority(9)), pod("unknown", "", "", priority(10))},
			map[types.UID]PodUsage{"few": {Processes: 1}, "many": {Processes: 900}, "important": {Processes: 9000}}, "[many few important unknown]",
		},
		"disk: layers, logs and volumes": {
			NodeFsAvailable, false, []*corev1.Pod{pod("logs", "", ""), pod("volume", "", "", emptyDir("v", "9Gi", "")), pod("layer", "", ""), pod("asked", "ephemeral-storage=1Gi", "")},
			map[types.UID]PodUsage{
				"logs":   {Containers: []ContainerUsage{{Name: "c", Logs: Disk{Bytes: 10 * mebi}}}},
				"volume": {Volumes: map[string]Disk{"v": {Bytes: 30 * mebi}}},
				"layer":  {Containers: []ContainerUsage{{Name: "c", Rootfs: Disk{Bytes: 20 * mebi}}}},
				"asked":  {Containers: []ContainerUsage{{Name: "c", Rootfs: Disk{Bytes: 500 * mebi}}}},
			},
			"[volume layer logs asked]",
		},
		"the images' own disk has the layers": {
			ImageFsAvailable, true, []*corev1.Pod{pod("logs", "", ""), pod("layer", "", "")},
			map[types.UID]PodUsage{
				"logs":  {Containers: []ContainerUsage{{Name: "c", Logs: Disk{Bytes: 100 * mebi}}}},
				"layer": {Containers: []ContainerUsage{{Name: "c", Rootfs: Disk{Bytes: 20 * mebi}}}},
			},
			"[layer logs]",
		},
		"and the node's the rest": {
			NodeFsAvailable, true, []*corev1.Pod{pod("layer", "", ""), pod("logs", "", "")},
			map[types.UID]PodUsage{
				"logs":  {Containers: []ContainerUsage{{Name: "c", Logs: Disk{Bytes: 1 * mebi}}}},
				"layer": {Containers: []ContainerUsage{{Name: "c", Rootfs: Disk{Bytes: 200 * mebi}}}},
			},
			"[logs layer]",
		},
		"inodes": {
			NodeFsInodesFree, false, []*corev1.Pod{pod("few", "", ""), pod("many", "", "", emptyDir("v", "1Gi", ""))},
			map[types.UID]PodUsage{
				"few":  {Containers: []ContainerUsage{{Name: "c", Rootfs: Disk{Bytes: 500 * mebi, Inodes: 5}}}},
				"many": {Volumes: map[string]Disk{"v": {Inodes: 5000}}},
			},
			"[many few]",
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, p := range ranked(test.signal, Usage{Pods: test.usage, DedicatedImageFs: test.separate}, test.pods) {
				got = append(got, p.Name)
			}
			if fmt.Sprint(got) != test.want {
				t.Errorf("got %v, want %s", got, test.want)
			}
		})
	}
}

func TestMessages(t *testing.T) {
	c := Config{Thresholds: mustParse(t, map[string]string{"memory.available": "100Mi", "nodefs.available": "10%", "nodefs.inodesFree": "5%", "pid.available": "10%"}, nil, nil, nil)}
	podLevel := func(p *corev1.Pod) {
		p.Spec.Resources = &corev1.ResourceRequirements{Requests: list("memory=64Mi")}
	}
	use := PodUsage{Memory: 200 * mebi, Containers: []ContainerUsage{{Name: "c", Memory: 200 * mebi, Rootfs: Disk{Bytes: 3 * mebi}, Logs: Disk{Bytes: 1 * mebi}}}}
	tests := map[string]struct {
		signal   Signal
		observed Observation
		pod      *corev1.Pod
		want     string
	}{
		"memory": {
			MemoryAvailable, Observation{50 * mebi, 1000 * mebi}, pod("p", "memory=128Mi", ""),
			"The node was low on resource: memory. Threshold quantity: 100Mi, available: 50Mi. Container c was using 200Mi, request is 128Mi, has larger consumption of memory. ",
		},
		"memory, within its request": {
			MemoryAvailable, Observation{50 * mebi, 1000 * mebi}, pod("p", "memory=1Gi", ""),
			"The node was low on resource: memory. Threshold quantity: 100Mi, available: 50Mi. ",
		},
		"memory of the pod as a whole": {
			MemoryAvailable, Observation{50 * mebi, 1000 * mebi}, pod("p", "memory=1Gi", "", podLevel),
			"The node was low on resource: memory. Threshold quantity: 100Mi, available: 50Mi. Pod p was using 200Mi, request is 64Mi, has larger consumption of memory. ",
		},
		"disk": {
			NodeFsAvailable, Observation{50 * mebi, 1000 * mebi}, pod("p", "", ""),
			"The node was low on resource: ephemeral-storage. Threshold quantity: 104857601, available: 50Mi. Container c was using 4Mi, request is 0, has larger consumption of ephemeral-storage. ",
		},
		"inodes":    {NodeFsInodesFree, Observation{10, 1000}, pod("p", "", ""), "The node was low on resource: inodes. Threshold quantity: 50, available: 10. "},
		"processes": {PIDAvailable, Observation{10, 1000}, pod("p", "", ""), "The node was low on resource: pids. Threshold quantity: 100, available: 10. "},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			u := Usage{Signals: map[Signal]Observation{test.signal: test.observed}, Pods: map[types.UID]PodUsage{"p": use}}
			_, d := Decide(c, State{}, u, []*corev1.Pod{test.pod}, start)
			if len(d.Candidates) != 1 || d.Candidates[0].Message != test.want || d.Candidates[0].Grace != 1 {
				t.Errorf("got  %+v\nwant %s", d.Candidates, test.want)
			}
		})
	}
}

func TestReclaimBeforeEviction(t *testing.T) {
	c := Config{Thresholds: mustParse(t, map[string]string{"memory.available": "100", "nodefs.available": "100", "imagefs.available": "100", "pid.available": "100"}, nil, nil, nil)}
	tests := map[string]struct {
		signals  []Signal
		separate bool
		want     string // what is resourceName, and whether containers and images are freed
	}{
		"memory":                         {[]Signal{MemoryAvailable}, false, "memory false false"},
		"processes":                      {[]Signal{PIDAvailable}, false, "pids false false"},
		"the one disk":                   {[]Signal{NodeFsAvailable}, false, "ephemeral-storage true true"},
		"the node's disk of two":         {[]Signal{NodeFsAvailable}, true, "ephemeral-storage false false"},
		"the images' disk of two":        {[]Signal{ImageFsAvailable}, true, "ephemeral-storage true true"},
		"memory comes before all others": {[]Signal{ImageFsAvailable, PIDAvailable, MemoryAvailable}, true, "memory false false"},
		"nothing":                        {nil, true, " false false"},
	}
	for name, test := range tests {
		u := Usage{Signals: map[Signal]Observation{}, DedicatedImageFs: test.separate}
		for _, s := range test.signals {
			u.Signals[s] = Observation{1, 1000}
		}
		_, d := Decide(c, State{}, u, nil, start)
		if got := fmt.Sprint(d.StarvedResource, " ", d.Containers, " ", d.Images); got != test.want {
			t.Errorf("%s: got %s, want %s", name, got, test.want)
		}
	}
}

func TestOverLimit(t *testing.T) {
	critical := pod("critical", "", "", emptyDir("v", "1Mi", ""), priority(podstate.SystemCriticalPriority))
	logs := func(b int64) PodUsage {
		return PodUsage{Containers: []ContainerUsage{{Name: "c", Logs: Disk{Bytes: b}, Rootfs: Disk{Bytes: 10 * mebi}}}, Disk: Disk{Bytes: b}}
	}
	volume := PodUsage{Volumes: map[string]Disk{"v": {Bytes: 2 * mebi}}}
	tests := map[string]struct {
		pod      *corev1.Pod
		usage    PodUsage
		separate bool
		want     string
	}{
		"an emptyDir that is too large": {pod("p", "", "", emptyDir("v", "1Mi", "")), volume, false, `Usage of EmptyDir volume "v" exceeds the limit "1Mi". `},
		"one that is not":               {pod("p", "", "", emptyDir("v", "3Mi", "")), volume, false, ""},
		"one in memory":                 {pod("p", "", "", emptyDir("v", "1Mi", corev1.StorageMediumMemory)), volume, false, ""},
		"a pod over its limit":          {pod("p", "", "ephemeral-storage=20Mi"), logs(30 * mebi), false, "Pod ephemeral local storage usage exceeds the total limit of containers 20Mi. "},
		"a container over its limit":    {pod("p", "", "ephemeral-storage=8Mi"), logs(1 * mebi), false, `Container c exceeded its local ephemeral storage limit "8Mi". `},
		"whose layer is elsewhere":      {pod("p", "", "ephemeral-storage=8Mi"), logs(1 * mebi), true, ""},
		"no limits":                     {pod("p", "", ""), logs(1 << 40), false, ""},
		"a critical pod":                {critical, volume, false, ""},
	}
	for name, test := range tests {
		u := Usage{Pods: map[types.UID]PodUsage{test.pod.UID: test.usage}, DedicatedImageFs: test.separate}
		_, d := Decide(Config{}, State{}, u, []*corev1.Pod{test.pod}, start)
		got := ""
		if len(d.OverLimit) > 0 {
			got = d.OverLimit[0].Message
		}
		if got != test.want {
			t.Errorf("%s: got %q, want %q", name, got, test.want)
		}
		if want := len(test.pod.Spec.Volumes) > 0 && test.pod.Spec.Volumes[0].EmptyDir.Medium == "" || !test.pod.Spec.Containers[0].Resources.Limits.StorageEphemeral().IsZero(); HasDiskLimits(test.pod) != want {
			t.Errorf("%s: limits of disk %v", name, !want)
		}
	}
}

func TestCriticalPodsAreNotEvicted(t *testing.T) {
	c := Config{Thresholds: mustParse(t, map[string]string{"memory.available": "100Mi"}, nil, nil, nil)}
	_, d := Decide(c, State{}, memoryLeft(1), []*corev1.Pod{pod("etcd", "", "", priority(podstate.SystemCriticalPriority)), pod("p", "memory=1Gi", "")}, start)
	if len(d.Candidates) != 1 || d.Candidates[0].Pod.Name != "p" {
		t.Errorf("%+v", d.Candidates)
	}
}

func TestCondition(t *testing.T) {
	e := Eviction{Pod: pod("p", "", ""), Message: "why. ", SetDisruptionTarget: true}
	c := e.Condition(start)
	if c.Type != corev1.DisruptionTarget || c.Status != corev1.ConditionTrue || c.Reason != "TerminationByKubelet" || c.Message != "why. " ||
		c.ObservedGeneration != 3 || !c.LastTransitionTime.Time.Equal(start) {
		t.Errorf("%+v", c)
	}
	if c := (Eviction{Pod: e.Pod, Message: "too large. "}).Condition(start); c != nil {
		t.Errorf("%+v", c)
	}
}

func TestParse(t *testing.T) {
	all, err := Parse(map[string]string{"memory.available": "100Mi", "nodefs.available": "10%", "imagefs.available": "0%"},
		map[string]string{"pid.available": "500"}, map[string]string{"pid.available": "30s"}, map[string]string{"nodefs.available": "5%"}, true)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, t := range all {
		got = append(got, fmt.Sprintf("%s %d %v %d", t.Signal, t.Value.of(1000), t.Grace, t.MinReclaim.of(1000)))
	}
	want := "[memory.available 104857600 0s 0 allocatableMemory.available 104857600 0s 0 nodefs.available 100 0s 50 pid.available 500 30s 0]"
	if fmt.Sprint(got) != want {
		t.Errorf("got  %v\nwant %s", got, want)
	}
	bad := map[string][4]map[string]string{
		"unsupported eviction signal disk":                  {{"disk": "1"}},
		"must be positive":                                  {{"memory.available": "0"}},
		"must be <= 100%":                                   {{"memory.available": "101%"}},
		"must be >= 0%":                                     {{"memory.available": "-1%"}},
		"grace period must be specified":                    {nil, {"memory.available": "1Mi"}},
		"must be a positive value":                          {nil, {"memory.available": "1Mi"}, {"memory.available": "-1s"}},
		"negative eviction minimum reclaim":                 {nil, nil, nil, {"memory.available": "-1"}},
		"minimum reclaim memory.available must be positive": {nil, nil, nil, {"memory.available": "0%"}},
	}
	for want, in := range bad {
		if _, err := Parse(in[0], in[1], in[2], in[3], false); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
	defaults, err := Parse(DefaultHard(), nil, nil, nil, true)
	if err != nil || len(defaults) != 6 {
		t.Errorf("%v, %v", defaults, err)
	}
	reserved := Reserved(defaults, list("memory=1Gi ephemeral-storage=100Gi cpu=4"))
	if reserved.Memory().String() != "100Mi" || reserved.StorageEphemeral().Value() != 10737418400 || len(reserved) != 2 {
		t.Errorf("%v", reserved)
	}
}

func TestAdmits(t *testing.T) {
	memory, disk := []corev1.NodeConditionType{corev1.NodeMemoryPressure}, []corev1.NodeConditionType{corev1.NodeDiskPressure}
	tolerant := func(p *corev1.Pod) {
		p.Spec.Tolerations = []corev1.Toleration{{Key: corev1.TaintNodeMemoryPressure, Operator: corev1.TolerationOpExists}}
	}
	everything := func(p *corev1.Pod) { p.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}} }
	other := func(p *corev1.Pod) {
		p.Spec.Tolerations = []corev1.Toleration{{Key: corev1.TaintNodeDiskPressure, Operator: corev1.TolerationOpExists}}
	}
	const guaranteed = "cpu=1 memory=1Gi"
	tests := map[string]struct {
		conditions []corev1.NodeConditionType
		pod        *corev1.Pod
		want       string
	}{
		"all is well":                        {nil, pod("p", "", ""), ""},
		"short of memory, without resources": {memory, pod("p", "", ""), "The node had condition: [MemoryPressure]. "},
		"short of memory, with resources":    {memory, pod("p", "cpu=1", ""), ""},
		"short of memory, tolerated":         {memory, pod("p", "", "", tolerant), ""},
		"short of memory, all tolerated":     {memory, pod("p", "", "", everything), ""},
		"short of memory, other tolerated":   {memory, pod("p", "", "", other), "The node had condition: [MemoryPressure]. "},
		"short of disk":                      {disk, pod("p", guaranteed, guaranteed, everything), "The node had condition: [DiskPressure]. "},
		"short of both":                      {slices.Concat(disk, memory), pod("p", guaranteed, guaranteed), "The node had condition: [DiskPressure MemoryPressure]. "},
		"critical":                           {disk, pod("p", "", "", priority(podstate.SystemCriticalPriority)), ""},
	}
	for name, test := range tests {
		if ok, why := Admits(test.conditions, test.pod); why != test.want || ok != (test.want == "") {
			t.Errorf("%s: %v %q", name, ok, why)
		}
	}
}
