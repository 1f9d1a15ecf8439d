package node

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"skiff/internal/kubelet/cri"
	"skiff/internal/kubelet/runtime"
	"skiff/test/cluster"
	"skiff/test/registry"
)

const testDeployment = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 3
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      dnsPolicy: Default
      terminationGracePeriodSeconds: 1
      tolerations:
      - {key: node.kubernetes.io/not-ready, operator: Exists, effect: NoExecute, tolerationSeconds: 1}
      - {key: node.kubernetes.io/unreachable, operator: Exists, effect: NoExecute, tolerationSeconds: 1}
      initContainers:
      - {name: first, image: IMAGE, command: ["true"]}
      containers:
      - name: c
        image: IMAGE
        command: [sh, -c, 'echo version $VERSION; exec sleep 1000']
        env: [{name: VERSION, value: "1"}]
        readinessProbe: {exec: {command: ["true"]}, periodSeconds: 1}
        resources: {requests: {cpu: 10m, memory: 16Mi}}
`

// deploymentTest is a cluster on which a Deployment is followed from kubectl to its containers.
type deploymentTest struct {
	*testing.T
	c        *cluster.Cluster
	source   *registry.Registry
	runtime  *cri.Client
	store    *clientv3.Client
	hollow   *cluster.Process
	observed *observations
}

// TestDeploymentLifecycle follows a Deployment through kubectl, API server, store, controllers, scheduler, kubelet,
// runtime, and back to its status. Then come an update, a rollback, and the failure of a container, a pod and a node.
// Each stage starts from the result of the previous one.
func TestDeploymentLifecycle(t *testing.T) {
	r := startDeploymentTest(t)
	for _, stage := range []struct {
		name string
		run  func(*deploymentTest)
	}{
		{"apply", (*deploymentTest).apply}, {"update", (*deploymentTest).update}, {"rollback", (*deploymentTest).rollback}, {"a container is killed", (*deploymentTest).killContainer},
		{"a pod is deleted", (*deploymentTest).deletePod}, {"a node fails", (*deploymentTest).failNode},
	} {
		if !t.Run(stage.name, func(t *testing.T) {
			on := *r
			on.T = t
			stage.run(&on)
		}) {
			t.Fatalf("the pods are\n%s\nthe events\n%s", kubectl(t, r.c, "", "get", "pods", "-o", "wide"), kubectl(t, r.c, "", "get", "events"))
		}
	}
}

// startDeploymentTest starts a node with containers, a hollow node that is unschedulable at first, and a registry with
// only this image.
func startDeploymentTest(t *testing.T) *deploymentTest {
	t.Helper()
	socket := "unix://" + shortDir(t) + "/etcd"
	c, err := cluster.SkiffNode(t.TempDir(), "--etcd-listen-client-url="+socket, "--node-monitor-grace-period=15s")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Stop)
	r := &deploymentTest{T: t, c: c}
	if r.source, err = registry.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.source.Stop)
	images, err := cluster.Images("busybox")
	if err != nil {
		t.Fatal(err)
	}
	if err := r.source.AddArchive(images + "/busybox.tar"); err != nil {
		t.Fatal(err)
	}
	dataDir := filepath.Join(c.Dir, "data")
	if err := r.source.StandIn(filepath.Join(dataDir, "registries"), r.source.Host); err != nil {
		t.Fatal(err)
	}
	endpoint, err := runtime.Endpoint(dataDir)
	if err != nil {
		t.Fatal(err)
	}
	if r.runtime, err = cri.Dial(endpoint); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.runtime.Close() })
	// An imported image would save the node from pulling the same content under another name.
	for _, image := range []string{busybox, "registry.k8s.io/e2e-test-images/nginx:1.27.0-2"} {
		if err := r.runtime.RemoveImage(context.Background(), &runtimeapi.ImageSpec{Image: image}); err != nil {
			t.Fatal(err)
		}
	}
	if r.store, err = clientv3.New(clientv3.Config{Endpoints: []string{socket}, DialTimeout: 10 * time.Second}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.store.Close() })
	if r.hollow, err = c.Hollow(1); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the second node is there", func() bool { return strings.Contains(kubectl(t, c, "", "get", "nodes"), "hollow-0") })
	kubectl(t, c, "", "cordon", "hollow-0")
	kubectl(t, c, "", "wait", "--for=condition=Ready", "node", "--all", "--timeout=30s")
	r.observed = watchPods(t, c)
	return r
}

// observations are the states of pods, as a watch observed them.
type observations struct {
	mu     sync.Mutex
	states map[string][]string
}

// watchPods watches the pods of the Deployment: whether each has a node, its phase and whether it is ready.
func watchPods(t *testing.T, c *cluster.Cluster) *observations {
	t.Helper()
	s := &observations{states: map[string][]string{}}
	const line = `{.metadata.name} {.spec.nodeName}/{.status.phase}/{.status.conditions[?(@.type=="Ready")].status}{"\n"}`
	out, stop := follow(t, c, "get", "pods", "-l", "app=web", "--watch", "-o", "jsonpath="+line)
	t.Cleanup(stop)
	go func() {
		for lines := bufio.NewScanner(out); lines.Scan(); {
			pod, state, _ := strings.Cut(lines.Text(), " ")
			s.mu.Lock()
			if known := s.states[pod]; len(known) == 0 || known[len(known)-1] != state {
				s.states[pod] = append(known, state)
			}
			s.mu.Unlock()
		}
	}()
	return s
}

// of returns the states of a pod in order.
func (s *observations) of(pod string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.states[pod])
}

// read reads objects with kubectl.
func (d *deploymentTest) read(into any, args ...string) {
	d.Helper()
	if err := json.Unmarshal([]byte(kubectl(d.T, d.c, "", append([]string{"get", "-o", "json"}, args...)...)), into); err != nil {
		d.Fatal(err)
	}
}

// pods returns the pods of the Deployment that are not terminating, by name.
func (d *deploymentTest) pods() map[string]corev1.Pod {
	d.Helper()
	var list corev1.PodList
	d.read(&list, "pods", "-l", "app=web")
	pods := map[string]corev1.Pod{}
	for _, pod := range list.Items {
		if pod.DeletionTimestamp == nil {
			pods[pod.Name] = pod
		}
	}
	return pods
}

// settle waits until there are exactly count pods, all ready on the node with containers.
func (d *deploymentTest) settle(count int) map[string]corev1.Pod {
	d.Helper()
	var pods map[string]corev1.Pod
	eventually(d.T, fmt.Sprint(count, " pods are ready on node-1"), func() bool {
		pods = d.pods()
		for _, pod := range pods {
			if condition(pod, corev1.PodReady) == nil || pod.Spec.NodeName != "node-1" {
				return false
			}
		}
		return len(pods) == count
	})
	return pods
}

// condition returns a condition that is true.
func condition(pod corev1.Pod, name corev1.PodConditionType) *corev1.PodCondition {
	for _, c := range pod.Status.Conditions {
		if c.Type == name && c.Status == corev1.ConditionTrue {
			return &c
		}
	}
	return nil
}

// containers returns the running containers of pods, by pod, according to the runtime.
func (d *deploymentTest) containers() map[string]string {
	d.Helper()
	list, err := d.runtime.ListContainers(context.Background(), &runtimeapi.ContainerFilter{
		State: &runtimeapi.ContainerStateValue{State: runtimeapi.ContainerState_CONTAINER_RUNNING},
	})
	if err != nil {
		d.Fatal(err)
	}
	containers := map[string]string{}
	for _, c := range list {
		containers[c.Labels["io.kubernetes.pod.name"]] = "containerd://" + c.Id
	}
	return containers
}

// checkContainers checks that exactly the pods' containers are running.
func (d *deploymentTest) checkContainers(pods map[string]corev1.Pod) {
	d.Helper()
	want := map[string]string{}
	for name, pod := range pods {
		want[name] = pod.Status.ContainerStatuses[0].ContainerID
	}
	eventually(d.T, "the runtime runs what the status says, and nothing else", func() bool { return maps.Equal(d.containers(), want) })
}

// created returns the store revision at which an object was created.
func (d *deploymentTest) created(resource, name string) int64 {
	d.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	key := "/registry/" + resource + "/default/" + name
	answer, err := d.store.Get(ctx, key)
	if err != nil || len(answer.Kvs) != 1 {
		d.Fatalf("the store has not %s: %v", key, err)
	}
	return answer.Kvs[0].CreateRevision
}

// replicaSets returns the ReplicaSets of the Deployment, by revision.
func (d *deploymentTest) replicaSets() map[string]appsv1.ReplicaSet {
	d.Helper()
	var list appsv1.ReplicaSetList
	d.read(&list, "replicasets", "-l", "app=web")
	sets := map[string]appsv1.ReplicaSet{}
	for _, set := range list.Items {
		sets[set.Annotations["deployment.kubernetes.io/revision"]] = set
	}
	return sets
}

func (d *deploymentTest) apply() {
	image := d.source.Host + "/e2e-test-images/busybox:1.37.0-2"
	kubectl(d.T, d.c, strings.ReplaceAll(testDeployment, "IMAGE", image), "apply", "-f", "-")
	stored := d.created("deployments", "web")
	kubectl(d.T, d.c, "", "rollout", "status", "deployment/web", "--timeout=60s")
	sets := d.replicaSets()
	set, ok := sets["1"]
	if len(sets) != 1 || !ok || !ownedBy(set.OwnerReferences, "Deployment", "web") {
		d.Fatalf("the ReplicaSets are %v", sets)
	}
	pods := d.settle(3)
	setStored := d.created("replicasets", set.Name)
	if stored >= setStored {
		d.Errorf("the Deployment was stored at %d, its ReplicaSet at %d", stored, setStored)
	}
	for name, pod := range pods {
		if !ownedBy(pod.OwnerReferences, "ReplicaSet", set.Name) || d.created("pods", name) <= setStored {
			d.Errorf("%s was not made by the ReplicaSet: %v", name, pod.OwnerReferences)
		}
		want := []string{"/Pending/", "node-1/Pending/", "node-1/Pending/False", "node-1/Running/False", "node-1/Running/True"}
		if !inOrder(d.observed.of(name), want) {
			d.Errorf("%s went through %v, want a part of %v in this order", name, d.observed.of(name), want)
		}
		d.checkTimes(pod)
		d.checkEvents(pod)
		d.checkDecision(name)
	}
	d.checkContainers(pods)
	// Three pods needed the image at the same time. It was pulled once.
	if requests := d.source.Requests(); len(requests) != 2 || !strings.HasPrefix(requests[0], "HEAD manifest e2e-test-images/busybox:1.37") || !strings.HasPrefix(requests[1], "GET manifest") {
		d.Errorf("the registry was asked %q", requests)
	}
}

func ownedBy(owners []metav1.OwnerReference, kind, name string) bool {
	return len(owners) == 1 && owners[0].Kind == kind && owners[0].Name == name && owners[0].Controller != nil && *owners[0].Controller
}

// inOrder reports whether states are a subsequence of all, including its first and last element.
func inOrder(states, all []string) bool {
	if len(states) == 0 || states[0] != all[0] || states[len(states)-1] != all[len(all)-1] {
		return false
	}
	for _, state := range states {
		i := slices.Index(all, state)
		if i < 0 {
			return false
		}
		all = all[i+1:]
	}
	return true
}

// checkTimes checks that a pod's conditions became true one after the other.
func (d *deploymentTest) checkTimes(pod corev1.Pod) {
	d.Helper()
	last := pod.CreationTimestamp.Time
	for _, name := range []corev1.PodConditionType{corev1.PodScheduled, corev1.PodReadyToStartContainers, corev1.PodInitialized, corev1.ContainersReady, corev1.PodReady} {
		c := condition(pod, name)
		if c == nil || c.LastTransitionTime.Time.Before(last) {
			d.Errorf("%s: %s is %v, after %v", pod.Name, name, c, last)
			return
		}
		last = c.LastTransitionTime.Time
	}
	first, main := pod.Status.InitContainerStatuses[0].State.Terminated, pod.Status.ContainerStatuses[0].State.Running
	if first == nil || main == nil || first.ExitCode != 0 || main.StartedAt.Time.Before(first.FinishedAt.Time) {
		d.Errorf("%s: the init container is %v, the container %v", pod.Name, first, main)
	}
}

// checkEvents checks a pod's events.
func (d *deploymentTest) checkEvents(pod corev1.Pod) {
	d.Helper()
	var list corev1.EventList
	d.read(&list, "events", "--field-selector", "involvedObject.uid="+string(pod.UID))
	var reasons []string
	for _, e := range list.Items {
		if e.Type != corev1.EventTypeNormal {
			d.Errorf("%s: %s %s", pod.Name, e.Reason, e.Message)
		}
		if times := pullTimes.FindStringSubmatch(e.Message); times != nil {
			pull, err := time.ParseDuration(times[1])
			all, err2 := time.ParseDuration(times[2])
			if err != nil || err2 != nil || pull > all {
				d.Errorf("%s: %s", pod.Name, e.Message)
			}
		}
		if e.Reason != "Pulling" { // only recorded by pods that started before the image was present
			reasons = append(reasons, e.Reason+" "+e.InvolvedObject.FieldPath)
		}
	}
	want := []string{"Scheduled ", "Pulled spec.initContainers{first}", "Created spec.initContainers{first}", "Started spec.initContainers{first}",
		"Pulled spec.containers{c}", "Created spec.containers{c}", "Started spec.containers{c}"}
	slices.Sort(reasons)
	slices.Sort(want)
	if !slices.Equal(reasons, want) {
		d.Errorf("%s: the events are %q, want %q", pod.Name, reasons, want)
	}
}

var pullTimes = regexp.MustCompile(`^Successfully pulled image .* in (\S+) \((\S+) including waiting\)`)

// checkDecision checks that the scheduler filtered out one node and chose among the others.
func (d *deploymentTest) checkDecision(pod string) {
	d.Helper()
	root, err := cluster.Root()
	if err != nil {
		d.Fatal(err)
	}
	out, err := exec.Command(filepath.Join(root, "bin/skiff"), "why", "pod/"+pod, "--kubeconfig="+d.c.Kubeconfig).CombinedOutput()
	if err != nil || !strings.Contains(string(out), "Pod default/"+pod+" goes to node node-1") || !strings.Contains(string(out), "refused by NodeUnschedulable") {
		d.Errorf("why: %v\n%s", err, out)
	}
}

func (d *deploymentTest) update() {
	before := d.pods()
	kubectl(d.T, d.c, "", "set", "env", "deployment/web", "VERSION=2")
	kubectl(d.T, d.c, "", "rollout", "status", "deployment/web", "--timeout=60s")
	pods := d.settle(3)
	for name := range pods {
		if _, old := before[name]; old {
			d.Errorf("%s is still there", name)
		}
		if output := kubectl(d.T, d.c, "", "logs", name, "-c", "c"); output != "version 2\n" {
			d.Errorf("%s says %q", name, output)
		}
	}
	d.checkSets("2", "1")
	d.checkContainers(pods)
	if requests := d.source.Requests(); len(requests) != 0 {
		d.Errorf("an image that is there was asked for: %q", requests)
	}
}

// checkSets checks that the ReplicaSet of one revision has all pods and that of another none.
func (d *deploymentTest) checkSets(full, empty string) {
	d.Helper()
	sets := d.replicaSets()
	if len(sets) != 2 || *sets[full].Spec.Replicas != 3 || sets[full].Status.ReadyReplicas != 3 || *sets[empty].Spec.Replicas != 0 || sets[empty].Status.Replicas != 0 {
		d.Errorf("the ReplicaSets are %v", sets)
	}
}

func (d *deploymentTest) rollback() {
	first := d.replicaSets()["1"].Name
	kubectl(d.T, d.c, "", "rollout", "undo", "deployment/web")
	kubectl(d.T, d.c, "", "rollout", "status", "deployment/web", "--timeout=60s")
	pods := d.settle(3)
	for name := range pods {
		if output := kubectl(d.T, d.c, "", "logs", name, "-c", "c"); output != "version 1\n" {
			d.Errorf("%s says %q", name, output)
		}
	}
	d.checkSets("3", "2")
	if again := d.replicaSets()["3"].Name; again != first {
		d.Errorf("the rollback made %s, want %s", again, first)
	}
	d.checkContainers(pods)
}

// killContainer kills a container's process directly.
func (d *deploymentTest) killContainer() {
	pods := d.pods()
	name := slices.Sorted(maps.Keys(pods))[0]
	victim := pods[name]
	status, err := d.runtime.ContainerStatus(context.Background(), strings.TrimPrefix(victim.Status.ContainerStatuses[0].ContainerID, "containerd://"), true)
	if err != nil {
		d.Fatal(err)
	}
	var info struct{ PID int }
	if err := json.Unmarshal([]byte(status.Info["info"]), &info); err != nil || info.PID == 0 {
		d.Fatalf("the runtime tells no process: %v %v", err, status.Info)
	}
	if err := syscall.Kill(info.PID, syscall.SIGKILL); err != nil {
		d.Fatal(err)
	}
	eventually(d.T, "the container runs again", func() bool {
		s := podNow(d.T, d.c, name).Status.ContainerStatuses[0]
		return s.RestartCount == 1 && s.State.Running != nil && s.Ready
	})
	now := podNow(d.T, d.c, name)
	s := now.Status.ContainerStatuses[0]
	if now.UID != victim.UID || s.ContainerID == victim.Status.ContainerStatuses[0].ContainerID || now.Status.PodIP != victim.Status.PodIP {
		d.Errorf("it is %s %s %s, was %s %s", now.UID, now.Status.PodIP, identity(now), victim.UID, identity(victim))
	}
	if last := s.LastTerminationState.Terminated; last == nil || last.ExitCode != 137 || last.Reason != "Error" || last.ContainerID != victim.Status.ContainerStatuses[0].ContainerID {
		d.Errorf("its last state is %v", s.LastTerminationState)
	}
	if started := eventCount(d.T, d.c, name, "Started"); started != 3 {
		d.Errorf("%d starts, want those of the init container, the container, and its second life", started)
	}
	for other, pod := range d.settle(3) {
		if other != name && identity(pod) != identity(pods[other]) {
			d.Errorf("%s is %s, was %s", other, identity(pod), identity(pods[other]))
		}
	}
}

func (d *deploymentTest) deletePod() {
	before := d.pods()
	name := slices.Sorted(maps.Keys(before))[0]
	kubectl(d.T, d.c, "", "delete", "pod", name)
	pods := d.settle(3)
	fresh := 0
	for other, pod := range pods {
		switch old, ok := before[other]; {
		case other == name:
			d.Errorf("%s is still there", name)
		case !ok:
			fresh++
		case identity(pod) != identity(old):
			d.Errorf("%s is %s, was %s", other, identity(pod), identity(old))
		}
	}
	if fresh != 1 {
		d.Errorf("%d pods are new", fresh)
	}
	d.checkContainers(pods)
}

// failNode puts two pods on the second node and stops it.
func (d *deploymentTest) failNode() {
	before := d.pods()
	kubectl(d.T, d.c, "", "cordon", "node-1")
	kubectl(d.T, d.c, "", "uncordon", "hollow-0")
	kubectl(d.T, d.c, "", "scale", "deployment/web", "--replicas=5")
	kubectl(d.T, d.c, "", "rollout", "status", "deployment/web", "--timeout=30s")
	kubectl(d.T, d.c, "", "uncordon", "node-1")
	var lost []string
	for name, pod := range d.pods() {
		if pod.Spec.NodeName == "hollow-0" {
			lost = append(lost, name)
		}
	}
	if len(lost) != 2 {
		d.Fatalf("on the second node are %v, want two pods", lost)
	}
	d.hollow.Kill()
	kubectl(d.T, d.c, "", "wait", "--for=condition=Ready=Unknown", "node/hollow-0", "--timeout=40s")
	pods := d.settle(5)
	for name, old := range before {
		if identity(pods[name]) != identity(old) {
			d.Errorf("%s is %s, was %s", name, identity(pods[name]), identity(old))
		}
	}
	d.checkContainers(pods)
	var node corev1.Node
	d.read(&node, "node", "hollow-0")
	silent := time.Time{}
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady && c.Reason == "NodeStatusUnknown" {
			silent = c.LastTransitionTime.Time
		}
	}
	for _, name := range lost {
		pod := podNow(d.T, d.c, name)
		if pod.DeletionTimestamp == nil || silent.IsZero() || pod.DeletionTimestamp.Time.Before(silent) {
			d.Errorf("%s on the lost node is to go at %v; the node was found silent at %v", name, pod.DeletionTimestamp, silent)
		}
		if eventCount(d.T, d.c, name, "TaintManagerEviction") == 0 || eventCount(d.T, d.c, name, "NodeNotReady") == 0 {
			d.Errorf("no events say why %s goes", name)
		}
	}
	for name, pod := range pods {
		if _, old := before[name]; !old && pod.CreationTimestamp.Time.Before(silent) {
			d.Errorf("%s replaces a lost pod, but was made at %v, before the node was found silent", name, pod.CreationTimestamp)
		}
	}
}
