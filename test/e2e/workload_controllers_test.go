package e2e

import (
	"context"
	"log/slog"
	"maps"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientset "k8s.io/client-go/kubernetes"

	"skiff/internal/api"
	"skiff/internal/client"
	"skiff/internal/controllers"
	"skiff/test/cluster"
)

// TestWorkloadControllers runs skiff's own controllers, in this process and over the network: a Deployment of 100 replicas is rolled
// out and back.
func TestWorkloadControllers(t *testing.T) {
	t.Parallel()
	const replicas = 100
	c, err := cluster.Skiff(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Stop)
	rollOutAndBack(t, c, replicas)
}

// TestWorkloadControllersOnUpstream does the same on upstream's API server.
func TestWorkloadControllersOnUpstream(t *testing.T) {
	t.Parallel()
	c, err := cluster.UpstreamAPI(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Stop)
	rollOutAndBack(t, c, 20)
}

func rollOutAndBack(t *testing.T, c *cluster.Cluster, replicas int32) {
	config, err := c.Config()
	if err != nil {
		t.Fatal(err)
	}
	own, err := client.New(config, api.Scheme(), api.Kinds(api.Settings{}))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		ended <- controllers.Run(ctx, controllers.Config{
			Client: own, Enabled: []string{"deployment-controller", "replicaset-controller"}, Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
	}()
	k := clientset.NewForConfigOrDie(config)
	if err := createReadyNode(ctx, k, "node"); err != nil {
		t.Fatal(err)
	}
	ensureAccount(ctx, t, k)
	go bindAll(ctx, k)
	go (&hollowKubelet{client: k}).run(ctx)
	deployment, err := k.AppsV1().Deployments("default").Create(ctx, webDeployment(replicas), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	waitForRollout(ctx, t, k, deployment.Name, "image:1", replicas)
	t.Logf("%d replicas after %v", replicas, time.Since(began))
	setImage(ctx, t, k, deployment.Name, "image:2")
	waitForRollout(ctx, t, k, deployment.Name, "image:2", replicas)
	setImage(ctx, t, k, deployment.Name, "image:1") // what `rollout undo` writes
	waitForRollout(ctx, t, k, deployment.Name, "image:1", replicas)
	t.Logf("rolled out and back after %v", time.Since(began))

	sets, err := k.AppsV1().ReplicaSets("default").List(ctx, metav1.ListOptions{})
	if err != nil || len(sets.Items) != 2 {
		t.Fatalf("%d replica sets after a roll back, want the 2 revisions; %v", len(sets.Items), err)
	}
	d, err := k.AppsV1().Deployments("default").Get(ctx, deployment.Name, metav1.GetOptions{})
	if err != nil || d.Annotations["deployment.kubernetes.io/revision"] != "3" {
		t.Errorf("revision %q after a roll back, want 3; %v", d.Annotations["deployment.kubernetes.io/revision"], err)
	}
	eventually(ctx, t, "events report the rollout", func(ctx context.Context) (bool, error) {
		events, err := k.CoreV1().Events("default").List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.kind=Deployment,reason=ScalingReplicaSet"})
		return err == nil && len(events.Items) > 2, err
	})
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("the controllers ended with %v", err)
	}
}

// ensureAccount creates the service account pods run as, where no controller has done so.
func ensureAccount(ctx context.Context, t *testing.T, k clientset.Interface) {
	t.Helper()
	_, err := k.CoreV1().ServiceAccounts("default").Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
}

// bindAll binds every pending pod to one node.
func bindAll(ctx context.Context, k clientset.Interface) {
	for ctx.Err() == nil {
		w, err := k.CoreV1().Pods("").Watch(ctx, metav1.ListOptions{ResourceVersion: "0", FieldSelector: "spec.nodeName="})
		if err != nil {
			continue
		}
		for event := range w.ResultChan() {
			if pod, ok := event.Object.(*corev1.Pod); ok && pod.Spec.NodeName == "" && pod.DeletionTimestamp == nil {
				_ = k.CoreV1().Pods(pod.Namespace).Bind(ctx, &corev1.Binding{
					ObjectMeta: metav1.ObjectMeta{Name: pod.Name, Namespace: pod.Namespace}, Target: corev1.ObjectReference{Kind: "Node", Name: "node"}}, metav1.CreateOptions{})
			}
		}
		w.Stop()
	}
}

// TestTakeOver lets upstream's controllers create replica sets, revisions and pods, then skiff's take over and change the
// deployment, then upstream's take over again: after each change there is nothing to write. Names contain hashes of pod templates;
// if one differed, every workload of a cluster would be restarted.
func TestTakeOver(t *testing.T) {
	t.Parallel()
	c, err := cluster.Skiff(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Stop)
	names := "deployment-controller,replicaset-controller,statefulset-controller,daemonset-controller,job-controller"
	if err := c.ControllerManager("--controllers=" + names); err != nil {
		t.Fatal(err)
	}
	config, err := c.Config()
	if err != nil {
		t.Fatal(err)
	}
	k := clientset.NewForConfigOrDie(config)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	if err := createReadyNode(ctx, k, "node"); err != nil {
		t.Fatal(err)
	}
	ensureAccount(ctx, t, k)
	deployment := webDeployment(3)
	if _, err := k.AppsV1().Deployments("default").Create(ctx, deployment, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	labels := map[string]string{"app": "other"}
	template := *deployment.Spec.Template.DeepCopy()
	template.Labels = labels
	stateful := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Name: "db"}, Spec: appsv1.StatefulSetSpec{
		ServiceName: "db", Replicas: new(int32(2)), PodManagementPolicy: appsv1.ParallelPodManagement, Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: template}}
	if _, err := k.AppsV1().StatefulSets("default").Create(ctx, stateful, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	logging := map[string]string{"app": "log"}
	daemonTemplate := *template.DeepCopy()
	daemonTemplate.Labels = logging
	daemonTemplate.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}} // no controller marks the node ready
	daemon := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Name: "log"}, Spec: appsv1.DaemonSetSpec{Selector: &metav1.LabelSelector{MatchLabels: logging}, Template: daemonTemplate}}
	if _, err := k.AppsV1().DaemonSets("default").Create(ctx, daemon, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	jobTemplate := *deployment.Spec.Template.DeepCopy()
	jobTemplate.Labels, jobTemplate.Spec.RestartPolicy = nil, corev1.RestartPolicyNever
	job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: "work"}, Spec: batchv1.JobSpec{Completions: new(int32(3)), Parallelism: new(int32(2)), CompletionMode: new(batchv1.IndexedCompletion), Template: jobTemplate}}
	if _, err := k.BatchV1().Jobs("default").Create(ctx, job, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	go bindAll(ctx, k)
	go (&hollowKubelet{client: k}).run(ctx)
	eventually(ctx, t, "upstream's controllers are done", func(ctx context.Context) (bool, error) {
		pods, err := k.CoreV1().Pods("default").List(ctx, metav1.ListOptions{})
		return err == nil && len(pods.Items) == 3+2+1+2, err
	})
	waitUntilSettled(ctx, t, k)
	c.Others[0].Stop()
	before := written(ctx, t, k)

	own, err := client.New(config, api.Scheme(), api.Kinds(api.Settings{}))
	if err != nil {
		t.Fatal(err)
	}
	ours, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() {
		ended <- controllers.Run(ours, controllers.Config{Client: own, Enabled: strings.Split(names, ","), Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
	}()
	waitForControllers(ctx, t, k, "skiff")
	waitUntilSettled(ctx, t, k)
	assertSame(t, "skiff's controllers", before, written(ctx, t, k))
	setImage(ctx, t, k, deployment.Name, "image:2")
	waitForRollout(ctx, t, k, deployment.Name, "image:2", 3)
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	before = written(ctx, t, k)
	if err := c.ControllerManager("--controllers=" + names); err != nil {
		t.Fatal(err)
	}
	waitForControllers(ctx, t, k, "upstream")
	waitUntilSettled(ctx, t, k)
	assertSame(t, "upstream's controllers", before, written(ctx, t, k))
}

// waitForControllers gives each controller an object in a namespace of its own, and waits for its status: then the controllers run, and the
// objects that existed before have been in their queues.
func waitForControllers(ctx context.Context, t *testing.T, k clientset.Interface, namespace string) {
	t.Helper()
	must := func(_ any, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(k.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{}))
	deployment := webDeployment(0)
	selector, template := deployment.Spec.Selector, *deployment.Spec.Template.DeepCopy()
	template.Spec.NodeSelector = map[string]string{"none": "none"}
	must(k.AppsV1().Deployments(namespace).Create(ctx, deployment, metav1.CreateOptions{}))
	must(k.AppsV1().StatefulSets(namespace).Create(ctx, &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Name: "db"}, Spec: appsv1.StatefulSetSpec{
		ServiceName: "db", Replicas: new(int32(0)), Selector: selector, Template: template}}, metav1.CreateOptions{}))
	must(k.AppsV1().DaemonSets(namespace).Create(ctx, &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Name: "log"}, Spec: appsv1.DaemonSetSpec{
		Selector: selector, Template: template}}, metav1.CreateOptions{}))
	jobTemplate := *template.DeepCopy()
	jobTemplate.Labels, jobTemplate.Spec.RestartPolicy = nil, corev1.RestartPolicyNever
	must(k.BatchV1().Jobs(namespace).Create(ctx, &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: "work"}, Spec: batchv1.JobSpec{
		Suspend: new(true), Template: jobTemplate}}, metav1.CreateOptions{}))
	eventually(ctx, t, "the controllers of "+namespace+" run", func(ctx context.Context) (bool, error) {
		d, err := k.AppsV1().Deployments(namespace).Get(ctx, "web", metav1.GetOptions{})
		if err != nil || d.Status.ObservedGeneration == 0 {
			return false, err
		}
		sets, err := k.AppsV1().ReplicaSets(namespace).List(ctx, metav1.ListOptions{})
		if err != nil || len(sets.Items) != 1 || sets.Items[0].Status.ObservedGeneration == 0 {
			return false, err
		}
		s, err := k.AppsV1().StatefulSets(namespace).Get(ctx, "db", metav1.GetOptions{})
		if err != nil || s.Status.ObservedGeneration == 0 {
			return false, err
		}
		l, err := k.AppsV1().DaemonSets(namespace).Get(ctx, "log", metav1.GetOptions{})
		if err != nil || l.Status.ObservedGeneration == 0 {
			return false, err
		}
		j, err := k.BatchV1().Jobs(namespace).Get(ctx, "work", metav1.GetOptions{})
		return err == nil && len(j.Status.Conditions) == 1, err
	})
}

// waitUntilSettled waits until the controllers have written nothing for two seconds.
func waitUntilSettled(ctx context.Context, t *testing.T, k clientset.Interface) {
	t.Helper()
	last, since := written(ctx, t, k), time.Now()
	eventually(ctx, t, "nothing is written any more", func(ctx context.Context) (bool, error) {
		if now := written(ctx, t, k); !maps.Equal(now, last) {
			last, since = now, time.Now()
		}
		return time.Since(since) > 2*time.Second, nil
	})
}

func assertSame(t *testing.T, who string, before, after map[string]string) {
	t.Helper()
	for name, revision := range after {
		if before[name] != revision {
			t.Errorf("%s changed %s from resourceVersion %q to %s", who, name, before[name], revision)
		}
	}
	if len(after) != len(before) {
		t.Errorf("%s left %d objects of %d", who, len(after), len(before))
	}
}

// written returns the resourceVersions of all objects that the controllers write.
func written(ctx context.Context, t *testing.T, k clientset.Interface) map[string]string {
	t.Helper()
	all := map[string]string{}
	note := func(kind string, items []metav1.Object) {
		for _, item := range items {
			all[kind+" "+item.GetName()] = item.GetResourceVersion()
		}
	}
	pods, err := k.CoreV1().Pods("default").List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range pods.Items {
		note("pod", []metav1.Object{&pods.Items[i]})
	}
	sets, err := k.AppsV1().ReplicaSets("default").List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range sets.Items {
		note("replica set", []metav1.Object{&sets.Items[i]})
	}
	revisions, err := k.AppsV1().ControllerRevisions("default").List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range revisions.Items {
		note("revision", []metav1.Object{&revisions.Items[i]})
	}
	deployment, err := k.AppsV1().Deployments("default").Get(ctx, "web", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	stateful, err := k.AppsV1().StatefulSets("default").Get(ctx, "db", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	daemon, err := k.AppsV1().DaemonSets("default").Get(ctx, "log", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	job, err := k.BatchV1().Jobs("default").Get(ctx, "work", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	note("owner", []metav1.Object{deployment, stateful, daemon, job})
	return all
}
