package controllers_test

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	batchv1 "k8s.io/api/batch/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"

	"skiff/internal/controllers/volume"
	"skiff/internal/kind"
	"skiff/internal/localpath"
	"skiff/test/world"
)

// property must hold for controllers whatever users do.
type property struct {
	name  string
	run   []string
	nodes int
	seeds int
	// settle is the time until the state is stable, by default 15 minutes.
	settle time.Duration
	// act performs one random action; it is called repeatedly, and time passes in between.
	act func(w *world.World)
	// rest, if set, prepares a state that can become stable.
	rest func(w *world.World)
	// check checks the final state.
	check func(w *world.World)
}

// TestFixedPoints performs random actions while controllers run. Finally the state must be as desired, and a second sync, by
// restarted controllers, must write nothing.
func TestFixedPoints(t *testing.T) {
	covered := map[string]bool{}
	for _, p := range properties() {
		s := scenario{run: p.run, settings: allSettings()}
		for _, d := range s.definitions(t) {
			covered[d.Name] = true
		}
		t.Run(p.name, func(t *testing.T) {
			world.Seeds(t, max(p.seeds, 8), func(w *world.World) {
				if p.nodes > 0 {
					w.Play(p.nodes)
				}
				definitions := s.definitions(t)
				stop := w.Run(definitions...)
				for range 15 {
					p.act(w)
					w.Pass(time.Duration(w.Random.IntN(4000)) * time.Millisecond)
				}
				if p.rest != nil {
					p.rest(w)
				}
				w.Pass(cmp.Or(p.settle, 15*time.Minute))
				p.check(w)
				stop()
				w.AssertSettled(definitions...)
			})
		})
	}
	// Controllers with a property test in their own package.
	for _, name := range []string{"replicaset-controller", "deployment-controller", "statefulset-controller", "daemonset-controller", "job-controller", "garbage-collector-controller"} {
		covered[name] = true
	}
	for _, d := range (scenario{run: []string{"*", "bootstrapsigner", "tokencleaner"}, settings: allSettings()}).definitions(t) {
		if !covered[d.Name] {
			t.Errorf("%s has no property test", d.Name)
		}
	}
}

func properties() []property {
	return []property{
		{name: "replication controllers", run: []string{"replicationcontroller"}, nodes: 3, act: actReplication, check: checkReplication},
		{name: "cron jobs", run: []string{"cronjob", "job", "ttl-after-finished-controller", "garbagecollector"}, nodes: 2, act: actCron, rest: restCron, check: checkCron},
		{name: "namespaces", run: []string{"namespace", "serviceaccount", "root-ca-cert-publisher"}, nodes: 1, act: actNamespaces, check: checkNamespaces},
		{name: "quotas", run: []string{"resourcequota"}, nodes: 1, act: actQuotas, check: checkQuotas},
		{name: "migrations", run: []string{"storage-version-migrator-controller"}, act: actMigrations, check: checkMigrations},
		{name: "pods without a place", run: []string{"podgc"}, act: actLostPods, check: checkLostPods},
		{name: "requests and leases", run: []string{"csrapproving", "csrsigning", "csrcleaner", "podcertificaterequest-cleaner-controller", "apiserver-lease-cleaner-controller"},
			seeds: 3, act: actRequests, rest: func(w *world.World) { w.Pass(30 * time.Hour) }, check: checkRequests},
		{name: "accounts", run: []string{"serviceaccount-token", "clusterrole-aggregation", "bootstrapsigner", "tokencleaner", "legacy-service-account-token-cleaner",
			"kube-apiserver-serving-clustertrustbundle-publisher-controller"}, act: actAccounts, check: checkAccounts},
		{name: "services", run: []string{"endpoints-controller", "endpointslice-controller", "endpointslice-mirroring-controller", "service-cidr-controller", "service"},
			nodes: 3, act: actServices, check: checkServices},
		{name: "nodes", run: []string{"nodelifecycle", "taint-eviction-controller", "nodeipam", "ttl"}, settle: 5 * time.Second, act: actNodes, rest: restNodes, check: checkNodes},
		{name: "policies", run: []string{"validatingadmissionpolicy-status-controller"}, act: actPolicies, check: checkPolicies},
		{name: "scaling", run: []string{"disruption-controller", "replicaset", "deployment", "horizontalpodautoscaling"}, nodes: 3, act: actScaling, check: checkScaling},
		{name: "claims", run: []string{"persistentvolume-binder", "pvc-protection", "pv-protection", "volumeattributesclass-protection-controller", "ephemeral-volume",
			"persistentvolume-expander", "local-path-provisioner", "local-path-cleaner", "attachdetach"}, nodes: 2, act: actClaims, rest: restClaims, check: checkClaims},
		{name: "resource claims", run: []string{"resourceclaim-controller", "device-taint-eviction-controller", "garbagecollector"}, act: actResourceClaims, rest: restResourceClaims, check: checkResourceClaims},
	}
}

// ensure creates an object, or updates the existing one.
func ensure[T kind.Object](w *world.World, obj T, change func(T)) {
	if world.Gone[T](w, obj.GetNamespace(), obj.GetName()) {
		change(obj)
		world.Create(w, obj)
		return
	}
	world.Edit(w, obj.GetNamespace(), obj.GetName(), change)
}

// removeAny deletes a random object.
func removeAny[T kind.Object](w *world.World) {
	if all := world.List[T](w); len(all) > 0 {
		w.Remove(world.Pick(w, all...))
	}
}

func randomName(w *world.World, prefix string, n int) string {
	return fmt.Sprint(prefix, w.Random.IntN(n))
}

func actReplication(w *world.World) {
	w.Chaos(0.2, 0)
	switch w.Random.IntN(5) {
	case 0, 1:
		ensure(w, &corev1.ReplicationController{ObjectMeta: meta(randomName(w, "rc", 2))}, func(c *corev1.ReplicationController) {
			c.Spec.Replicas = new(int32(w.Random.IntN(5)))
			if c.Spec.Template == nil {
				c.Spec.Selector, c.Spec.Template = map[string]string{"app": c.Name}, new(template(c.Name, ""))
			}
		})
	case 2:
		removeAny[*corev1.Pod](w)
	case 3:
		name := randomName(w, "rc", 2)
		ensure(w, pod("orphan"), func(p *corev1.Pod) { p.Labels = map[string]string{"app": name} })
	case 4:
		if all := world.List[*corev1.Pod](w); len(all) > 0 {
			world.Edit(w, "default", world.Pick(w, all...).Name, func(p *corev1.Pod) { p.Labels = map[string]string{"app": randomName(w, "rc", 3)} })
		}
	}
}

// checkReplication: every controller has the desired number of pods, none has two owners, and the status matches.
func checkReplication(w *world.World) {
	for _, c := range world.List[*corev1.ReplicationController](w) {
		mine := 0
		for _, p := range world.List[*corev1.Pod](w) {
			if !metav1.IsControlledBy(p, c) || p.Status.Phase != corev1.PodRunning {
				continue
			}
			if p.Labels["app"] != c.Name {
				w.T.Errorf("%s keeps pod %s, which has left it", c.Name, p.Name)
			}
			mine++
		}
		if want := int(*c.Spec.Replicas); c.DeletionTimestamp == nil && (mine != want || int(c.Status.Replicas) != want || c.Status.ObservedGeneration != c.Generation) {
			w.T.Errorf("%s wants %d, has %d, says %+v", c.Name, want, mine, c.Status)
		}
	}
}

func actCron(w *world.World) {
	name := randomName(w, "cron", 2)
	switch w.Random.IntN(4) {
	case 0, 1:
		ensure(w, &batchv1.CronJob{ObjectMeta: meta(name)}, func(c *batchv1.CronJob) {
			c.Spec.Schedule = world.Pick(w, "* * * * *", "*/2 * * * *", "0 0 1 1 *")
			c.Spec.ConcurrencyPolicy = world.Pick(w, batchv1.AllowConcurrent, batchv1.ForbidConcurrent, batchv1.ReplaceConcurrent)
			c.Spec.Suspend = new(w.Chance(0.2))
			c.Spec.SuccessfulJobsHistoryLimit, c.Spec.FailedJobsHistoryLimit = new(int32(w.Random.IntN(3))), new(int32(w.Random.IntN(2)))
			c.Spec.JobTemplate.Spec = job(name, world.Pick(w, world.PlayEnd, world.PlayFail, ""), func(s *batchv1.JobSpec) {
				s.BackoffLimit = new(int32(0))
				if w.Chance(0.3) {
					s.TTLSecondsAfterFinished = new(int32(w.Random.IntN(90)))
				}
			}).Spec
		})
	case 2:
		removeAny[*batchv1.Job](w)
	case 3:
		removeAny[*corev1.Pod](w)
	}
	w.Pass(time.Duration(w.Random.IntN(120)) * time.Second)
}

func restCron(w *world.World) {
	for _, c := range world.List[*batchv1.CronJob](w) {
		world.Edit(w, "default", c.Name, func(c *batchv1.CronJob) { c.Spec.Suspend = new(true) })
	}
	w.Chaos(0, 1)
	w.Pass(time.Minute)
	w.Nudge()
}

// checkCron: no more finished jobs are kept than the limit, none is active, and the status lists none.
func checkCron(w *world.World) {
	for _, c := range world.List[*batchv1.CronJob](w) {
		done := map[batchv1.JobConditionType]int32{}
		for _, j := range world.List[*batchv1.Job](w) {
			if !metav1.IsControlledBy(j, c) {
				continue
			}
			for _, condition := range j.Status.Conditions {
				done[condition.Type]++
			}
		}
		if done[batchv1.JobComplete] > *c.Spec.SuccessfulJobsHistoryLimit || done[batchv1.JobFailed] > *c.Spec.FailedJobsHistoryLimit || len(c.Status.Active) > 0 {
			w.T.Errorf("%s keeps %v, of which %d and %d are wanted; active %v", c.Name, done, *c.Spec.SuccessfulJobsHistoryLimit, *c.Spec.FailedJobsHistoryLimit, c.Status.Active)
		}
	}
}

func actNamespaces(w *world.World) {
	name := randomName(w, "ns", 3)
	there := !world.Gone[*corev1.Namespace](w, "", name) && world.Get[*corev1.Namespace](w, "", name).DeletionTimestamp == nil
	switch {
	case !there && world.Gone[*corev1.Namespace](w, "", name):
		world.Create(w, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})
	case there && w.Chance(0.4):
		w.Remove(world.Get[*corev1.Namespace](w, "", name))
	case there && w.Chance(0.5):
		ensure(w, pod(randomName(w, "p", 5), func(p *corev1.Pod) { p.Namespace = name }), func(*corev1.Pod) {})
	case there:
		for _, account := range world.List[*corev1.ServiceAccount](w) {
			if account.Namespace == name {
				w.Remove(account)
			}
		}
		for _, m := range world.List[*corev1.ConfigMap](w) {
			if m.Namespace == name {
				w.Remove(m)
			}
		}
	}
}

// checkNamespaces: deleted namespaces are gone with their content; the others have a service account and the CA certificates.
func checkNamespaces(w *world.World) {
	alive := map[string]bool{}
	for _, namespace := range world.List[*corev1.Namespace](w) {
		alive[namespace.Name] = true
		if namespace.DeletionTimestamp != nil {
			w.T.Errorf("%s is still there: %+v", namespace.Name, namespace.Status)
		}
		if world.Gone[*corev1.ServiceAccount](w, namespace.Name, "default") || world.Gone[*corev1.ConfigMap](w, namespace.Name, "kube-root-ca.crt") {
			w.T.Errorf("%s lacks its account or the authority", namespace.Name)
		}
	}
	for _, p := range world.List[*corev1.Pod](w) {
		if !alive[p.Namespace] {
			w.T.Errorf("pod %s outlives its namespace %s", p.Name, p.Namespace)
		}
	}
}

func actQuotas(w *world.World) {
	switch w.Random.IntN(4) {
	case 0:
		ensure(w, &corev1.ResourceQuota{ObjectMeta: meta(randomName(w, "q", 2))}, func(q *corev1.ResourceQuota) {
			q.Spec.Hard = corev1.ResourceList{}
			for _, name := range []corev1.ResourceName{corev1.ResourcePods, corev1.ResourceConfigMaps, corev1.ResourceServices, "count/configmaps"} {
				if w.Chance(0.7) {
					q.Spec.Hard[name] = *resource.NewQuantity(int64(w.Random.IntN(10)), resource.DecimalSI)
				}
			}
		})
	case 1:
		ensure(w, &corev1.ConfigMap{ObjectMeta: meta(randomName(w, "c", 6))}, func(*corev1.ConfigMap) {})
	case 2:
		ensure(w, pod(randomName(w, "p", 6)), func(*corev1.Pod) {})
	case 3:
		removeAny[*corev1.ConfigMap](w)
		removeAny[*corev1.Pod](w)
	}
}

// checkQuotas: the usage in the status equals the actual usage.
func checkQuotas(w *world.World) {
	configMaps, pods := 0, len(world.List[*corev1.Pod](w))
	for _, m := range world.List[*corev1.ConfigMap](w) {
		if m.Namespace == "default" {
			configMaps++
		}
	}
	count := map[corev1.ResourceName]int{corev1.ResourcePods: pods, corev1.ResourceConfigMaps: configMaps, "count/configmaps": configMaps}
	for _, q := range world.List[*corev1.ResourceQuota](w) {
		for name := range q.Spec.Hard {
			used, ok := q.Status.Used[name]
			if !ok || int(used.Value()) != count[name] {
				w.T.Errorf("%s says %v of %s are used, there are %d", q.Name, used.String(), name, count[name])
			}
		}
		if len(q.Status.Used) != len(q.Spec.Hard) {
			w.T.Errorf("%s says %v of %v", q.Name, q.Status.Used, q.Spec.Hard)
		}
	}
}

func actLostPods(w *world.World) {
	node := randomName(w, "node", 3)
	switch w.Random.IntN(4) {
	case 0:
		if world.Gone[*corev1.Node](w, "", node) {
			world.Create(w, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}})
		}
	case 1:
		removeAny[*corev1.Node](w)
	default:
		name := randomName(w, "p", 8)
		if world.Gone[*corev1.Pod](w, "default", name) {
			world.Create(w, pod(name, func(p *corev1.Pod) { p.Spec.NodeName = node }))
			world.EditStatus(w, "default", name, func(p *corev1.Pod) {
				p.Status.Phase = world.Pick(w, corev1.PodRunning, corev1.PodSucceeded, corev1.PodFailed)
			})
		}
	}
}

// checkLostPods: no pod is left on a deleted node, and at most one terminated pod is kept.
func checkLostPods(w *world.World) {
	ended := 0
	for _, p := range world.List[*corev1.Pod](w) {
		if world.Gone[*corev1.Node](w, "", p.Spec.NodeName) {
			w.T.Errorf("pod %s is on %s, which is gone", p.Name, p.Spec.NodeName)
		}
		if p.Status.Phase != corev1.PodRunning {
			ended++
		}
	}
	if ended > 1 {
		w.T.Errorf("%d pods that have ended are kept", ended)
	}
}

func actRequests(w *world.World) {
	switch name := randomName(w, "r", 6); w.Random.IntN(3) {
	case 0:
		if world.Gone[*certificatesv1.CertificateSigningRequest](w, "", name) {
			request := certificateRequest(w, name)
			if w.Chance(0.5) {
				request.Spec.SignerName = "example.com/other" // never decided
			}
			world.Create(w, request)
		}
	case 1:
		ensure(w, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: name, Labels: map[string]string{"apiserver.kubernetes.io/identity": "kube-apiserver"}}},
			func(l *coordinationv1.Lease) {
				l.Spec = coordinationv1.LeaseSpec{HolderIdentity: &name, RenewTime: new(metav1.NowMicro()), LeaseDurationSeconds: new(int32(3600))}
			})
	case 2:
		w.Pass(time.Duration(w.Random.IntN(90)) * time.Minute)
	}
}

// checkRequests: after more than a day all requests are decided and cleaned up.
func checkRequests(w *world.World) {
	if left := world.List[*certificatesv1.CertificateSigningRequest](w); len(left) > 0 {
		w.T.Errorf("%d requests are left, the first %+v", len(left), left[0].Status)
	}
	if left := world.List[*coordinationv1.Lease](w); len(left) > 0 {
		w.T.Errorf("%d leases are left", len(left))
	}
}

func actAccounts(w *world.World) {
	if world.Gone[*corev1.Namespace](w, "", "kube-public") {
		world.Create(w, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "kube-public"}})
		world.Create(w, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-public", Name: "cluster-info"}, Data: map[string]string{"kubeconfig": "content"}})
	}
	account := randomName(w, "robot", 2)
	switch w.Random.IntN(6) {
	case 0:
		ensure(w, &corev1.ServiceAccount{ObjectMeta: meta(account)}, func(*corev1.ServiceAccount) {})
	case 1:
		if name := randomName(w, "token", 4); world.Gone[*corev1.Secret](w, "default", name) {
			secret := &corev1.Secret{ObjectMeta: meta(name), Type: corev1.SecretTypeServiceAccountToken}
			secret.Annotations = map[string]string{corev1.ServiceAccountNameKey: account}
			world.Create(w, secret)
		}
	case 2:
		removeAny[*corev1.ServiceAccount](w)
	case 3:
		id := randomName(w, "aaaaa", 3)
		ensure(w, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "bootstrap-token-" + id}, Type: "bootstrap.kubernetes.io/token"}, func(s *corev1.Secret) {
			s.Data = map[string][]byte{"token-id": []byte(id), "token-secret": []byte("0123456789abcdef"), "usage-bootstrap-signing": []byte("true"),
				"expiration": []byte(time.Now().Add(time.Duration(1+w.Random.IntN(20)) * 10 * time.Minute).UTC().Format(time.RFC3339))}
		})
	case 4:
		ensure(w, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "all"}}, func(r *rbacv1.ClusterRole) {
			r.AggregationRule = &rbacv1.AggregationRule{ClusterRoleSelectors: []metav1.LabelSelector{{MatchLabels: map[string]string{"into": "all"}}}}
		})
	case 5:
		ensure(w, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: randomName(w, "part", 3)}}, func(r *rbacv1.ClusterRole) {
			r.Labels = world.Pick(w, nil, map[string]string{"into": "all"})
			r.Rules = []rbacv1.PolicyRule{{Verbs: []string{world.Pick(w, "get", "list")}, APIGroups: []string{""}, Resources: []string{r.Name}}}
		})
	}
}

// checkAccounts: a token secret has an account and data, cluster-info has the signatures of the existing tokens, and aggregated
// roles have the right rules.
func checkAccounts(w *world.World) {
	info := world.Get[*corev1.ConfigMap](w, "kube-public", "cluster-info")
	signatures := len(info.Data) - 1
	for _, s := range world.List[*corev1.Secret](w) {
		switch s.Type {
		case corev1.SecretTypeServiceAccountToken:
			if world.Gone[*corev1.ServiceAccount](w, "default", s.Annotations[corev1.ServiceAccountNameKey]) || len(s.Data["token"]) == 0 {
				w.T.Errorf("secret %s of %s: %v", s.Name, s.Annotations[corev1.ServiceAccountNameKey], slices.Sorted(maps.Keys(s.Data)))
			}
		default:
			signatures--
			if expires, err := time.Parse(time.RFC3339, string(s.Data["expiration"])); err != nil || expires.Before(time.Now()) {
				w.T.Errorf("token %s expired at %s and is still there", s.Name, expires)
			}
		}
	}
	if signatures != 0 {
		w.T.Errorf("%d signatures too many: %v", signatures, info.Data)
	}
	if world.Gone[*rbacv1.ClusterRole](w, "", "all") {
		return
	}
	rules := 0
	for _, r := range world.List[*rbacv1.ClusterRole](w) {
		if r.Labels["into"] == "all" {
			rules++
		}
	}
	if role := world.Get[*rbacv1.ClusterRole](w, "", "all"); len(role.Rules) != rules {
		w.T.Errorf("a role of %d parts has rules %v", rules, role.Rules)
	}
}

func actServices(w *world.World) {
	app := randomName(w, "app", 2)
	switch w.Random.IntN(6) {
	case 0, 1:
		ensure(w, &corev1.Service{ObjectMeta: meta(randomName(w, "s", 3))}, func(s *corev1.Service) {
			s.Spec.Type = world.Pick(w, corev1.ServiceTypeClusterIP, corev1.ServiceTypeNodePort, corev1.ServiceTypeLoadBalancer)
			s.Spec.Selector, s.Spec.Ports = map[string]string{"app": app}, []corev1.ServicePort{{Port: int32(80 + w.Random.IntN(2))}}
			s.Spec.PublishNotReadyAddresses = w.Chance(0.2)
		})
	case 2, 3:
		ensure(w, pod(randomName(w, "p", 8)), func(p *corev1.Pod) { p.Labels = map[string]string{"app": app} })
	case 4:
		removeAny[*corev1.Pod](w)
	case 5:
		if world.Gone[*corev1.Service](w, "default", "own") {
			world.Create(w, &corev1.Service{ObjectMeta: meta("own"), Spec: corev1.ServiceSpec{ClusterIP: corev1.ClusterIPNone, Ports: []corev1.ServicePort{{Port: 80}}}})
		}
		ensure(w, &corev1.Endpoints{ObjectMeta: meta("own")}, func(e *corev1.Endpoints) {
			e.Subsets = nil
			for i := range w.Random.IntN(3) {
				e.Subsets = append(e.Subsets, corev1.EndpointSubset{Addresses: []corev1.EndpointAddress{{IP: fmt.Sprint("10.3.2.", 1+w.Random.IntN(5))}}, Ports: []corev1.EndpointPort{{Port: int32(80 + i)}}})
			}
		})
	}
}

// checkServices: the ready endpoints of a service are its ready pods, without duplicates, and a load-balanced service has the
// nodes' addresses unless another one has its port.
func checkServices(w *world.World) {
	slicesOf := map[string][]string{}
	for _, s := range world.List[*discoveryv1.EndpointSlice](w) {
		for _, e := range s.Endpoints {
			if e.TargetRef != nil && *e.Conditions.Ready {
				slicesOf[s.Labels[discoveryv1.LabelServiceName]] = append(slicesOf[s.Labels[discoveryv1.LabelServiceName]], e.TargetRef.Name)
			}
		}
	}
	for _, s := range world.List[*corev1.Service](w) {
		if len(s.Spec.Selector) == 0 {
			continue
		}
		var want []string
		for _, p := range world.List[*corev1.Pod](w) {
			if labels.SelectorFromSet(s.Spec.Selector).Matches(labels.Set(p.Labels)) && p.Status.Phase == corev1.PodRunning {
				want = append(want, p.Name)
			}
		}
		got := slicesOf[s.Name]
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			w.T.Errorf("service %s has endpoints %v, want %v", s.Name, got, want)
		}
		if n := len(s.Status.LoadBalancer.Ingress); s.Spec.Type == corev1.ServiceTypeLoadBalancer && n != 0 && n != 3 || s.Spec.Type != corev1.ServiceTypeLoadBalancer && n != 0 {
			w.T.Errorf("service %s of type %s has %d addresses", s.Name, s.Spec.Type, n)
		}
	}
}

func beatNode(w *world.World, name string) {
	world.EditStatus(w, "", name, func(n *corev1.Node) {
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: metav1.Now(), LastTransitionTime: metav1.Now()}}
	})
}

func actNodes(w *world.World) {
	name := randomName(w, "node", 4)
	there := !world.Gone[*corev1.Node](w, "", name)
	switch {
	case !there:
		world.Create(w, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}})
	case w.Chance(0.2):
		w.Remove(world.Get[*corev1.Node](w, "", name))
	case w.Chance(0.3):
		world.Edit(w, "", name, func(n *corev1.Node) {
			n.Spec.Unschedulable = !n.Spec.Unschedulable
			n.Spec.Taints = slices.DeleteFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == "out" })
			if w.Chance(0.5) {
				n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: "out", Effect: corev1.TaintEffectNoExecute})
			}
		})
	case w.Chance(0.5):
		beatNode(w, name)
	default:
		ensure(w, pod(randomName(w, "p", 6), func(p *corev1.Pod) { p.Spec.NodeName = name }), func(*corev1.Pod) {})
	}
	w.Pass(time.Duration(w.Random.IntN(40)) * time.Second)
}

func restNodes(w *world.World) {
	for range 30 {
		for _, n := range world.List[*corev1.Node](w) {
			beatNode(w, n.Name)
		}
		w.Pass(10 * time.Second)
	}
}

// checkNodes: all nodes have their own pod CIDRs and a TTL, and no pod is on a node it does not tolerate.
func checkNodes(w *world.World) {
	given := map[string]string{}
	for _, n := range world.List[*corev1.Node](w) {
		if other, taken := given[n.Spec.PodCIDR]; taken || n.Spec.PodCIDR == "" {
			w.T.Errorf("%s has the range %q, which %q has", n.Name, n.Spec.PodCIDR, other)
		}
		given[n.Spec.PodCIDR] = n.Name
		if _, ok := n.Annotations[corev1.ObjectTTLAnnotationKey]; !ok {
			w.T.Errorf("%s has no ttl", n.Name)
		}
		for _, taint := range n.Spec.Taints {
			for _, p := range world.List[*corev1.Pod](w) {
				if taint.Key == "out" && p.Spec.NodeName == n.Name {
					w.T.Errorf("pod %s stays on %s", p.Name, n.Name)
				}
			}
		}
	}
}

func actScaling(w *world.World) {
	switch w.Random.IntN(5) {
	case 0:
		ensure(w, deployment(1), func(d *appsv1.Deployment) { d.Spec.Replicas = new(int32(w.Random.IntN(6))) })
	case 1:
		ensure(w, &policyv1.PodDisruptionBudget{ObjectMeta: meta("web")}, func(b *policyv1.PodDisruptionBudget) {
			b.Spec = policyv1.PodDisruptionBudgetSpec{Selector: selector(world.Pick(w, "web", "none"))}
			if w.Chance(0.5) {
				b.Spec.MinAvailable = new(world.Pick(w, intstr.FromInt32(2), intstr.FromString("50%")))
			} else {
				b.Spec.MaxUnavailable = new(world.Pick(w, intstr.FromInt32(1), intstr.FromString("40%")))
			}
		})
	case 2:
		ensure(w, &autoscalingv2.HorizontalPodAutoscaler{ObjectMeta: meta("web")}, func(h *autoscalingv2.HorizontalPodAutoscaler) {
			h.Spec.ScaleTargetRef = autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "web"}
			h.Spec.MinReplicas, h.Spec.MaxReplicas = new(int32(1+w.Random.IntN(3))), int32(3+w.Random.IntN(3))
		})
	case 3:
		removeAny[*corev1.Pod](w)
	case 4:
		if all := world.List[*corev1.Pod](w); len(all) > 0 {
			world.EditStatus(w, "default", world.Pick(w, all...).Name, func(p *corev1.Pod) {
				for i := range p.Status.Conditions {
					p.Status.Conditions[i].Status = world.Pick(w, corev1.ConditionTrue, corev1.ConditionFalse)
				}
			})
		}
	}
}

// checkScaling: the workload is within the autoscaler's bounds, and the status of a budget matches its pods.
func checkScaling(w *world.World) {
	if !world.Gone[*autoscalingv2.HorizontalPodAutoscaler](w, "default", "web") && !world.Gone[*appsv1.Deployment](w, "default", "web") {
		h, d := world.Get[*autoscalingv2.HorizontalPodAutoscaler](w, "default", "web"), world.Get[*appsv1.Deployment](w, "default", "web")
		if n := *d.Spec.Replicas; n != 0 && (n < *h.Spec.MinReplicas || n > h.Spec.MaxReplicas) {
			w.T.Errorf("%d replicas, of %d to %d", n, *h.Spec.MinReplicas, h.Spec.MaxReplicas)
		}
	}
	for _, b := range world.List[*policyv1.PodDisruptionBudget](w) {
		healthy, all := int32(0), int32(0)
		for _, p := range world.List[*corev1.Pod](w) {
			if p.Labels["app"] != b.Spec.Selector.MatchLabels["app"] {
				continue
			}
			all++
			if slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue }) {
				healthy++
			}
		}
		s := b.Status
		if s.CurrentHealthy != healthy || s.ExpectedPods != all || s.DisruptionsAllowed != max(0, healthy-s.DesiredHealthy) && all > 0 || s.ObservedGeneration != b.Generation {
			w.T.Errorf("%d of %d pods are healthy: %+v", healthy, all, s)
		}
	}
}

func actClaims(w *world.World) {
	switch w.Random.IntN(8) {
	case 0:
		if name := randomName(w, "v", 3); world.Gone[*corev1.PersistentVolume](w, "", name) {
			source := corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/tmp/" + name}}
			if w.Chance(0.5) {
				source = corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: "disk.example.com", VolumeHandle: name}}
			}
			world.Create(w, diskVolume(name, source))
		}
	case 1, 2:
		if name := randomName(w, "c", 4); world.Gone[*corev1.PersistentVolumeClaim](w, "default", name) {
			world.Create(w, claim(name, world.Pick(w, "", volume.LocalPathClass)))
		}
	case 3:
		removeAny[*corev1.PersistentVolumeClaim](w)
	case 4:
		if name := randomName(w, "p", 4); world.Gone[*corev1.Pod](w, "default", name) {
			world.Create(w, pod(name, func(p *corev1.Pod) {
				source := corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: randomName(w, "c", 4)}}
				if w.Chance(0.3) {
					source = corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{VolumeClaimTemplate: &corev1.PersistentVolumeClaimTemplate{Spec: claim("", "").Spec}}}
				}
				p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: source}}
			}))
		}
	case 5:
		removeAny[*corev1.Pod](w)
		ensure(w, &storagev1.VolumeAttributesClass{ObjectMeta: metav1.ObjectMeta{Name: "gold"}, DriverName: "disk.example.com", Parameters: map[string]string{"iops": "1"}}, func(*storagev1.VolumeAttributesClass) {})
	case 6:
		node := randomName(w, "n", 2)
		world.Edit(w, "", node, func(n *corev1.Node) { metav1.SetMetaDataAnnotation(&n.ObjectMeta, localpath.DirAnnotation, "/volumes") })
		removeLocalPaths(w, node)
	case 7: // as the scheduler would
		for _, c := range world.List[*corev1.PersistentVolumeClaim](w) {
			if *c.Spec.StorageClassName == volume.LocalPathClass && c.Annotations["volume.kubernetes.io/selected-node"] == "" && c.DeletionTimestamp == nil {
				world.Edit(w, c.Namespace, c.Name, func(c *corev1.PersistentVolumeClaim) {
					metav1.SetMetaDataAnnotation(&c.ObjectMeta, "volume.kubernetes.io/selected-node", randomName(w, "n", 2))
				})
				return
			}
		}
	}
}

// restClaims lets the nodes remove all directories that are to be removed.
func restClaims(w *world.World) {
	w.Pass(15 * time.Minute)
	for _, node := range world.List[*corev1.Node](w) {
		removeLocalPaths(w, node.Name)
	}
}

// checkClaims: a bound claim has a volume bound to it; no volume has two claims; deleted objects remain only while they are used.
func checkClaims(w *world.World) {
	owner := map[string]string{}
	for _, c := range world.List[*corev1.PersistentVolumeClaim](w) {
		if c.Status.Phase != corev1.ClaimBound {
			continue
		}
		v := world.Get[*corev1.PersistentVolume](w, "", c.Spec.VolumeName)
		if v.Spec.ClaimRef == nil || v.Spec.ClaimRef.UID != c.UID || v.Status.Phase != corev1.VolumeBound {
			w.T.Errorf("claim %s is bound to %s, which is %s of %v", c.Name, v.Name, v.Status.Phase, v.Spec.ClaimRef)
		}
		if other, taken := owner[v.Name]; taken {
			w.T.Errorf("volume %s is of %s and %s", v.Name, other, c.Name)
		}
		owner[v.Name] = c.Name
	}
	for _, v := range world.List[*corev1.PersistentVolume](w) {
		if v.DeletionTimestamp != nil {
			w.T.Errorf("volume %s is still being deleted: %v", v.Name, v.Finalizers)
		}
	}
	for _, n := range world.List[*corev1.Node](w) {
		if names := n.Annotations[localpath.RemovalsAnnotation]; names != "" {
			w.T.Errorf("node %s still has to remove %s", n.Name, names)
		}
	}
	for _, c := range world.List[*corev1.PersistentVolumeClaim](w) {
		used := slices.ContainsFunc(world.List[*corev1.Pod](w), func(p *corev1.Pod) bool {
			s := p.Spec.Volumes[0].VolumeSource
			return s.PersistentVolumeClaim != nil && s.PersistentVolumeClaim.ClaimName == c.Name || c.Name == p.Name+"-v"
		})
		if c.DeletionTimestamp != nil && !used {
			w.T.Errorf("claim %s leaves and nobody uses it, but it is still there: %v", c.Name, c.Finalizers)
		}
	}
}
