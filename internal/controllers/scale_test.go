package controllers_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	batchv1 "k8s.io/api/batch/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	resourceapi "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"

	"skiff/internal/client"
	"skiff/internal/controller"
	"skiff/internal/controllers"
	"skiff/internal/controllers/node"
	"skiff/internal/controllers/scaling"
	"skiff/internal/kind"
	"skiff/test/world"
)

// clusterSettings enable all controllers. Nodes of a cluster send no heartbeats and stay ready; autoscalers do not work periodically.
func clusterSettings() controllers.Settings {
	settings := allSettings()
	lifecycle := node.DefaultLifecycle
	lifecycle.Grace, lifecycle.StartupGrace = 1000*time.Hour, 1000*time.Hour
	settings.NodeLifecycle = &lifecycle
	autoscaler := scaling.DefaultAutoscaler
	autoscaler.SyncPeriod = 1000 * time.Hour
	settings.Autoscaler = &autoscaler
	settings.PodRanges = []node.PodRange{{Prefix: netip.MustParsePrefix("10.0.0.0/12"), NodeBits: 24}}
	return settings
}

// fillCluster creates n objects of every kind that controllers reconcile, nearly all of them in the namespace default.
func fillCluster(w *world.World, n int) {
	for _, name := range []string{corev1.NamespaceNodeLease, metav1.NamespacePublic, "quota"} {
		world.Create(w, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
	world.Create(w, &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "static"}, Provisioner: "kubernetes.io/no-provisioner"})
	world.Create(w, &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: "quota", Name: "limits"}, Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{
		corev1.ResourcePods: resource.MustParse("5"), corev1.ResourceConfigMaps: resource.MustParse("10")}}})
	world.Create(w, &appsv1.DaemonSet{ObjectMeta: meta("log"), Spec: appsv1.DaemonSetSpec{Selector: selector("log"), Template: template("log", "")}})
	world.Create(w, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "all"}, AggregationRule: &rbacv1.AggregationRule{
		ClusterRoleSelectors: []metav1.LabelSelector{{MatchLabels: map[string]string{"into": "all"}}}}})
	world.Create(w, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespacePublic, Name: "cluster-info"}, Data: map[string]string{"kubeconfig": "content"}})
	world.Create(w, bootstrapToken("aaaaaa"))
	for i := range n {
		world.Create(w, clusterNode(fmt.Sprint("n", i), i))
		world.Create(w, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: corev1.NamespaceNodeLease, Name: fmt.Sprint("n", i)}, Spec: coordinationv1.LeaseSpec{RenewTime: new(metav1.NowMicro())}})
		fillWorkloads(w, i)
		fillServices(w, i)
		fillVolumes(w, i)
		fillResourceClaims(w, i)
		account := world.Create(w, &corev1.ServiceAccount{ObjectMeta: meta(fmt.Sprint("account", i))})
		world.Create(w, tokenSecret(fmt.Sprint("token", i), account.Name))
		world.Create(w, clusterRole(fmt.Sprint("role", i), nil))
		world.Create(w, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("space", i)}})
		world.Create(w, certificateRequest(w, fmt.Sprint("request", i)))
	}
}

func clusterNode(name string, i int) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{"volumes.kubernetes.io/controller-managed-attach-detach": "true"},
			Labels: map[string]string{corev1.LabelTopologyZone: fmt.Sprint("zone", i%3), corev1.LabelOSStable: "linux"}},
		Status: corev1.NodeStatus{
			Allocatable: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("4"), corev1.ResourcePods: resource.MustParse("110")},
			Conditions:  []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: metav1.Now(), LastTransitionTime: metav1.Now()}},
			Addresses:   []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: fmt.Sprintf("192.168.%d.%d", i>>8, i&255)}},
		}}
}

// boundPod is a pod on a node, without an owner.
func boundPod(name, app, onNode string) *corev1.Pod {
	return pod(name, func(p *corev1.Pod) { p.Labels["app"], p.Spec.NodeName = app, onNode })
}

// createRunning creates a pod and reports it as ready.
func createRunning(w *world.World, p *corev1.Pod) {
	world.Create(w, p)
	world.EditStatus(w, p.Namespace, p.Name, func(p *corev1.Pod) {
		p.Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "10.200.0.1", PodIPs: []corev1.PodIP{{IP: "10.200.0.1"}},
			Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now()}}}
	})
}

func bootstrapToken(id string) *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: "bootstrap-token-" + id}, Type: "bootstrap.kubernetes.io/token", Data: map[string][]byte{
		"token-id": []byte(id), "token-secret": []byte("0123456789abcdef"), "usage-bootstrap-signing": []byte("true"),
		"expiration": []byte(time.Now().Add(1000 * time.Hour).UTC().Format(time.RFC3339))}}
}

func tokenSecret(name, account string) *corev1.Secret {
	secret := &corev1.Secret{ObjectMeta: meta(name), Type: corev1.SecretTypeServiceAccountToken}
	secret.Annotations = map[string]string{corev1.ServiceAccountNameKey: account}
	return secret
}

func clusterRole(name string, labels map[string]string) *rbacv1.ClusterRole {
	return &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}, Rules: []rbacv1.PolicyRule{{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{name}}}}
}

// fillWorkloads creates a pod without an owner, one workload of every kind, a budget and an autoscaler.
func fillWorkloads(w *world.World, i int) {
	app := func(kind string) string { return fmt.Sprint(kind, "-", i) }
	createRunning(w, boundPod(fmt.Sprint("p", i), app("app"), fmt.Sprint("n", i)))
	world.Create(w, &appsv1.ReplicaSet{ObjectMeta: meta(app("rs")), Spec: appsv1.ReplicaSetSpec{Replicas: new(int32(1)), Selector: selector(app("rs")), Template: template(app("rs"), "")}})
	world.Create(w, &corev1.ReplicationController{ObjectMeta: meta(app("rc")), Spec: corev1.ReplicationControllerSpec{
		Replicas: new(int32(1)), Selector: map[string]string{"app": app("rc")}, Template: new(template(app("rc"), ""))}})
	world.Create(w, &appsv1.Deployment{ObjectMeta: meta(app("deploy")), Spec: appsv1.DeploymentSpec{Replicas: new(int32(1)), Selector: selector(app("deploy")), Template: template(app("deploy"), "")}})
	world.Create(w, &appsv1.StatefulSet{ObjectMeta: meta(app("sts")), Spec: appsv1.StatefulSetSpec{Replicas: new(int32(1)), Selector: selector(app("sts")), Template: template(app("sts"), "")}})
	world.Create(w, job(app("job"), "", nil))
	world.Create(w, &batchv1.CronJob{ObjectMeta: meta(app("cron")), Spec: batchv1.CronJobSpec{
		Schedule: "0 0 1 1 *", JobTemplate: batchv1.JobTemplateSpec{Spec: job(app("cron"), "", nil).Spec}}})
	world.Create(w, &policyv1.PodDisruptionBudget{ObjectMeta: meta(app("pdb")), Spec: policyv1.PodDisruptionBudgetSpec{MinAvailable: new(intstr.FromInt32(1)), Selector: selector(app("app"))}})
	world.Create(w, &autoscalingv2.HorizontalPodAutoscaler{ObjectMeta: meta(app("hpa")), Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
		ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: app("deploy")}, MinReplicas: new(int32(2)), MaxReplicas: 5,
		Metrics: []autoscalingv2.MetricSpec{{Type: autoscalingv2.ResourceMetricSourceType, Resource: &autoscalingv2.ResourceMetricSource{Name: corev1.ResourceCPU,
			Target: autoscalingv2.MetricTarget{Type: autoscalingv2.AverageValueMetricType, AverageValue: new(resource.MustParse("500m"))}}}}}})
}

// fillServices creates a service with a selector, one without, and a load balancer.
func fillServices(w *world.World, i int) {
	world.Create(w, clusterService(fmt.Sprint("service", i), fmt.Sprint("app-", i)))
	own := clusterService(fmt.Sprint("own", i), "")
	own.Spec.ClusterIP = corev1.ClusterIPNone
	world.Create(w, own)
	world.Create(w, &corev1.Endpoints{ObjectMeta: meta(own.Name), Subsets: []corev1.EndpointSubset{{
		Addresses: []corev1.EndpointAddress{{IP: "10.3.2.3"}}, Ports: []corev1.EndpointPort{{Port: 80}}}}})
	world.Create(w, balancedService(fmt.Sprint("lb", i), int32(20000+i)))
}

func clusterService(name, app string) *corev1.Service {
	s := &corev1.Service{ObjectMeta: meta(name), Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}}
	if app != "" {
		s.Spec.Selector = map[string]string{"app": app}
	}
	return s
}

func balancedService(name string, port int32) *corev1.Service {
	s := clusterService(name, name)
	s.Spec.Type, s.Spec.Ports[0].Port = corev1.ServiceTypeLoadBalancer, port
	return s
}

// fillVolumes creates a claim with its volume and a pod that uses it, a claim that finds no volume, and a volume that nobody claims.
func fillVolumes(w *world.World, i int) {
	name := fmt.Sprint("disk", i)
	disk := diskVolume(name, corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: "disk.example.com", VolumeHandle: name}})
	world.Create(w, disk)
	bound := claim(name, "")
	bound.Spec.VolumeName = name
	world.Create(w, bound)
	user := boundPod(fmt.Sprint("user", i), fmt.Sprint("user-", i), fmt.Sprint("n", i))
	user.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name}}}}
	createRunning(w, user)
	world.Create(w, claim(fmt.Sprint("pending", i), "static"))
	free := diskVolume(fmt.Sprint("free", i), disk.Spec.PersistentVolumeSource)
	free.Spec.StorageClassName = fmt.Sprint("class", i)
	world.Create(w, free)
}

// fillResourceClaims creates a template with a pod that uses it, and a claim with a pod that uses it.
func fillResourceClaims(w *world.World, i int) {
	world.Create(w, claimTemplate(fmt.Sprint("template", i)))
	world.Create(w, pod(fmt.Sprint("devices", i), withTemplate(fmt.Sprint("template", i))))
	world.Create(w, deviceClaim(fmt.Sprint("shared", i)))
	world.Create(w, pod(fmt.Sprint("sharing", i), withClaim(fmt.Sprint("shared", i))))
	world.Create(w, taintedSlice(fmt.Sprint("devices", i), fmt.Sprint("n", i)))
}

// clusterChange is a change of one object and its reversal.
type clusterChange struct {
	name     string
	do, undo func(w *world.World)
}

// created is the number of objects that changes have created. Each gets a name of its own: a finalizer may keep an earlier one.
var created int

// creating is a change that creates an object with a name and deletes it.
func creating[T kind.Object](what string, obj func(name string) T) clusterChange {
	var made T
	create := func(w *world.World) {
		created++
		made = world.Create(w, obj(fmt.Sprintf("x%05d", created)))
	}
	return clusterChange{what, create, func(w *world.World) {
		policy := metav1.DeletePropagationBackground
		_ = w.Client.Delete(w.Ctx, made, metav1.DeleteOptions{PropagationPolicy: &policy, GracePeriodSeconds: new(int64(0))}) // a controller may have deleted it
	}}
}

// touching is a change that sets an annotation of an object and removes it.
func touching[T kind.Object](namespace, name string) clusterChange {
	annotate := func(value string) func(w *world.World) {
		return func(w *world.World) {
			world.Edit(w, namespace, name, func(obj T) {
				annotations := obj.GetAnnotations()
				if annotations == nil {
					annotations = map[string]string{}
				}
				annotations["example.com/touched"] = value
				obj.SetAnnotations(annotations)
			})
		}
	}
	return clusterChange{fmt.Sprintf("touch %T", *new(T)), annotate("yes"), annotate("no")}
}

func setReady(status corev1.ConditionStatus) func(w *world.World) {
	return func(w *world.World) {
		world.EditStatus(w, "", "n0", func(n *corev1.Node) {
			n.Status.Conditions[0].Status, n.Status.Conditions[0].LastHeartbeatTime = status, metav1.Now()
		})
	}
}

func setPodReady(status corev1.ConditionStatus) func(w *world.World) {
	return func(w *world.World) {
		world.EditStatus(w, "default", "p0", func(p *corev1.Pod) { p.Status.Conditions[0].Status = status })
	}
}

func setZone(zone string) func(w *world.World) {
	return func(w *world.World) {
		world.Edit(w, "", "n0", func(n *corev1.Node) { n.Labels[corev1.LabelTopologyZone] = zone })
	}
}

func setMaxReplicas(n int32) func(w *world.World) {
	return func(w *world.World) {
		world.Edit(w, "default", "hpa-0", func(h *autoscalingv2.HorizontalPodAutoscaler) { h.Spec.MaxReplicas = n })
	}
}

func beat(w *world.World) { setReady(corev1.ConditionTrue)(w) }

// clusterChanges are the changes whose cost is compared.
func clusterChanges() []clusterChange {
	return []clusterChange{
		creating("node", func(name string) *corev1.Node { return clusterNode(name, 1000) }),
		{"node readiness", setReady(corev1.ConditionFalse), setReady(corev1.ConditionTrue)},
		{"node zone", setZone("zone1"), setZone("zone0")},
		{"node heartbeat", beat, beat},
		touching[*coordinationv1.Lease](corev1.NamespaceNodeLease, "n0"),
		creating("pod", func(name string) *corev1.Pod { return boundPod(name, "app-0", "n0") }),
		{"pod readiness", setPodReady(corev1.ConditionFalse), setPodReady(corev1.ConditionTrue)},
		creating("service", func(name string) *corev1.Service { return clusterService(name, "app-0") }),
		creating("load balancer", func(name string) *corev1.Service { return balancedService(name, 19999) }),
		touching[*corev1.Service]("default", "service0"),
		touching[*corev1.Endpoints]("default", "own0"),
		touching[*appsv1.ReplicaSet]("default", "rs-0"),
		touching[*appsv1.Deployment]("default", "deploy-0"),
		touching[*appsv1.StatefulSet]("default", "sts-0"),
		touching[*batchv1.Job]("default", "job-0"),
		touching[*batchv1.CronJob]("default", "cron-0"),
		touching[*policyv1.PodDisruptionBudget]("default", "pdb-0"),
		{"autoscaler", setMaxReplicas(6), setMaxReplicas(5)},
		creating("pod with a quota", func(name string) *corev1.Pod {
			p := pod(name)
			p.Namespace = "quota"
			return p
		}),
		creating("volume", func(name string) *corev1.PersistentVolume {
			v := diskVolume(name, corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/" + name}})
			v.Spec.StorageClassName = "class0"
			return v
		}),
		creating("claim", func(name string) *corev1.PersistentVolumeClaim { return claim(name, "static") }),
		touching[*corev1.PersistentVolumeClaim]("default", "disk0"),
		creating("pod with a claim template", func(name string) *corev1.Pod { return pod(name, withTemplate("template0")) }),
		creating("pod with a resource claim", func(name string) *corev1.Pod { return pod(name, withClaim("shared0")) }),
		touching[*resourceapi.ResourceClaim]("default", "shared0"),
		touching[*resourceapi.ResourceSlice]("", "devices0"),
		touching[*resourceapi.ResourceClaimTemplate]("default", "template0"),
		creating("service account", func(name string) *corev1.ServiceAccount { return &corev1.ServiceAccount{ObjectMeta: meta(name)} }),
		creating("token", func(name string) *corev1.Secret { return tokenSecret(name, "account0") }),
		creating("bootstrap token", func(name string) *corev1.Secret { return bootstrapToken(name) }),
		creating("configmap", func(name string) *corev1.ConfigMap { return &corev1.ConfigMap{ObjectMeta: meta(name)} }),
		creating("cluster role", func(name string) *rbacv1.ClusterRole { return clusterRole(name, map[string]string{"into": "all"}) }),
		creating("namespace", func(name string) *corev1.Namespace {
			return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
		}),
	}
}

// workCounter counts the objects that a controller reads from the server and its requests.
type workCounter struct {
	client.Local
	work atomic.Uint64
}

func (c *workCounter) Get(ctx context.Context, gvr schema.GroupVersionResource, namespace, name string) (kind.Object, error) {
	c.work.Add(1)
	return c.Local.Get(ctx, gvr, namespace, name)
}

func (c *workCounter) List(ctx context.Context, gvr schema.GroupVersionResource, namespace string, l labels.Selector, f fields.Selector) ([]kind.Object, string, error) {
	objs, version, err := c.Local.List(ctx, gvr, namespace, l, f)
	c.work.Add(1 + uint64(len(objs)))
	return objs, version, err
}

// bytesPerObject is about the size of a small object in a response.
const bytesPerObject = 1024

func (c *workCounter) Transport() http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		response, err := c.Local.Transport().RoundTrip(r)
		c.work.Add(1)
		if err == nil {
			response.Body = &countedBody{ReadCloser: response.Body, work: &c.work}
		}
		return response, err
	})
}

// countedBody counts the bytes of a response.
type countedBody struct {
	io.ReadCloser
	bytes int
	work  *atomic.Uint64
}

func (b *countedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	before := b.bytes / bytesPerObject
	b.bytes += n
	b.work.Add(uint64(b.bytes/bytesPerObject - before))
	return n, err
}

// measured is a controller that runs and counts its work.
type measured struct {
	server    *workCounter
	informers *client.Informers
	registry  *prometheus.Registry
	stop      func()
}

// measure starts a controller with informers of its own.
func measure(w *world.World, definition controller.Definition) *measured {
	w.T.Helper()
	m := &measured{server: &workCounter{Local: w.Local()}, informers: client.NewInformers(w.Client), registry: prometheus.NewRegistry()}
	metrics, err := controller.NewMetrics(m.registry)
	if err != nil {
		w.T.Fatal(err)
	}
	loop, err := controller.NewLoop(definition, controller.Environment{Client: w.ClientOf(m.server), Informers: m.informers, Metrics: metrics, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		w.T.Fatal(err)
	}
	ctx, cancel := context.WithCancel(w.Ctx)
	var running sync.WaitGroup
	running.Go(func() { _ = m.informers.Run(ctx) })
	if err := m.informers.WaitForSync(ctx); err != nil {
		w.T.Fatal(err)
	}
	running.Go(func() {
		if err := loop.Run(ctx); err != nil {
			w.T.Error(err)
		}
	})
	m.stop = func() { cancel(); running.Wait() }
	return m
}

// work is the number of syncs, of objects read and of requests so far.
func (m *measured) work(t *testing.T) int {
	t.Helper()
	return int(m.informers.ObjectsRead()+m.server.work.Load()) + m.syncs(t)
}

// syncs is the number of syncs so far.
func (m *measured) syncs(t *testing.T) (total int) {
	t.Helper()
	families, err := m.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() == "controller_syncs_total" {
			for _, metric := range family.Metric {
				total += int(metric.GetCounter().GetValue())
			}
		}
	}
	return total
}

// The time given to controllers after a change and after its reversal: longer than their delays, shorter than the periods of periodic work.
const (
	doWindow   = 6 * time.Second
	undoWindow = 3 * time.Second
)

// costs returns the work of a controller for every change. Periodic work falls into some windows only, so that the least of several
// measurements is without it.
func costs(w *world.World, definition controller.Definition) map[string]int {
	m := measure(w, definition)
	defer m.stop()
	w.Pass(2 * time.Minute)
	cost := map[string]int{}
	changes := clusterChanges()
	// The rounds are shifted by five seconds against a period of 15 seconds, so that not all three windows of a change contain the work of it.
	const period = 15 * time.Second
	shift := period + 5*time.Second - time.Duration(len(changes))*(doWindow+undoWindow)%period
	for range 3 {
		w.Pass(shift)
		for _, change := range changes {
			before := m.work(w.T)
			change.do(w)
			w.Pass(doWindow)
			change.undo(w)
			w.Pass(undoWindow)
			if work, ok := cost[change.name]; !ok || m.work(w.T)-before < work {
				cost[change.name] = m.work(w.T) - before
			}
		}
	}
	return cost
}

// periodic are controllers that only work periodically, on everything. They handle no changes.
var periodic = []string{"pod-garbage-collector-controller"}

const (
	onEveryNode = "a set has a pod on every node: syncs of large sets are spaced"
	allNodes    = "the status of a service has the addresses of all nodes: changes of nodes are batched"
	livePods    = "before a claim is deleted, the pods of its namespace are read from the server"
)

// proportional are the controllers and changes whose work grows with the cluster, and why.
var proportional = map[string]map[string]string{
	"daemonset-controller":                        {"node": onEveryNode},
	"service-lb-controller":                       {"node": allNodes, "node readiness": allNodes},
	"persistentvolumeclaim-protection-controller": {"claim": livePods},
}

// TestWorkPerChange: what a controller does about a change does not grow with the number of nodes, pods, services and other objects in the
// cluster, not even with those in the same namespace.
func TestWorkPerChange(t *testing.T) {
	const small, large = 10, 40
	work := map[int]map[string]map[string]int{small: {}, large: {}}
	for _, size := range []int{small, large} {
		world.In(t, func(w *world.World) {
			fillCluster(w, size)
			for _, definition := range controllers.All(clusterSettings()) {
				work[size][definition.Name] = costs(w, definition)
			}
		})
	}
	for name, costs := range work[small] {
		if slices.Contains(periodic, name) {
			continue
		}
		for change, cost := range costs {
			more := work[large][name][change] - cost
			// A walk over all objects of a kind reads large-small more of them.
			if grows, why := more >= (large-small)*2/3, proportional[name][change]; grows && why == "" {
				t.Errorf("%s: %s costs %d with %d objects of a kind and %d with %d", name, change, cost, small, cost+more, large)
			} else if !grows && why != "" {
				t.Errorf("%s: %s is listed as proportional to the cluster, but costs %d and %d", name, change, cost, cost+more)
			}
		}
	}
}

// TestNodesAreBatched: while many nodes register, load balancers are not updated for each of them.
func TestNodesAreBatched(t *testing.T) {
	world.In(t, func(w *world.World) {
		fillCluster(w, 10)
		m := measureNamed(w, "service-lb-controller")
		defer m.stop()
		w.Pass(time.Minute)
		register := func(from, nodes int) int {
			before := m.work(t)
			for i := range nodes {
				world.Create(w, clusterNode(fmt.Sprint("new", from+i), 100+from+i))
				w.Pass(20 * time.Millisecond)
			}
			w.Pass(10 * time.Second)
			return m.work(t) - before
		}
		one, many := register(0, 1), register(1, 50)
		if many > 4*one {
			t.Errorf("one node costs %d, 50 nodes in a second cost %d", one, many)
		}
	})
}

// measureNamed starts the controller of that name.
func measureNamed(w *world.World, name string) *measured {
	w.T.Helper()
	definitions, err := controllers.Select(controllers.All(clusterSettings()), []string{name})
	if err != nil {
		w.T.Fatal(err)
	}
	return measure(w, definitions[0])
}

// TestQuotaOfALargeNamespace: while many objects are deleted, their usage is not calculated for each of them.
func TestQuotaOfALargeNamespace(t *testing.T) {
	world.In(t, func(w *world.World) {
		const objects, deletions = 600, 40
		world.Create(w, &corev1.ResourceQuota{ObjectMeta: meta("limits"), Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{corev1.ResourcePods: resource.MustParse("1000")}}})
		for i := range objects {
			world.Create(w, pod(fmt.Sprint("p", i)))
		}
		m := measureNamed(w, "resourcequota")
		defer m.stop()
		w.Pass(time.Minute)
		before := m.syncs(t)
		for i := range deletions {
			w.Remove(world.Get[*corev1.Pod](w, "default", fmt.Sprint("p", i)))
			w.Pass(60 * time.Millisecond)
		}
		w.Pass(time.Minute)
		if n := m.syncs(t) - before; n > deletions/2 {
			t.Errorf("%d syncs for %d deletions", n, deletions)
		}
		used := world.Get[*corev1.ResourceQuota](w, "default", "limits").Status.Used[corev1.ResourcePods]
		if used.Value() != objects-deletions {
			t.Errorf("%d pods are counted", used.Value())
		}
	})
}

// TestForegroundDeletionOfMany: an owner that waits for many dependents is not checked for each of them.
func TestForegroundDeletionOfMany(t *testing.T) {
	world.In(t, func(w *world.World) {
		const dependents = 400
		owner := world.Create(w, &corev1.ConfigMap{ObjectMeta: meta("owner")})
		for i := range dependents {
			child := &corev1.ConfigMap{ObjectMeta: meta(fmt.Sprint("child", i))}
			child.Finalizers = []string{"example.com/wait"}
			child.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: owner.Name, UID: owner.UID, BlockOwnerDeletion: new(true)}}
			world.Create(w, child)
		}
		m := measureNamed(w, "garbagecollector")
		defer m.stop()
		w.Pass(time.Minute)
		before := m.syncs(t)
		remove(w, owner, metav1.DeletePropagationForeground)
		w.Pass(time.Second)
		for i := range dependents {
			world.Edit(w, "default", fmt.Sprint("child", i), func(c *corev1.ConfigMap) { c.Finalizers = nil })
			w.Pass(10 * time.Millisecond)
		}
		w.Pass(time.Minute)
		if n := m.syncs(t) - before; n > 50*dependents {
			t.Errorf("%d syncs for %d dependents", n, dependents)
		}
		if !world.Gone[*corev1.ConfigMap](w, "default", "owner") {
			t.Error("the owner is still there")
		}
	})
}
