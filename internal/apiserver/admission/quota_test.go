package admission

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"skiff/internal/quota"
)

func newQuota(name, hard, used string, scopes ...corev1.ResourceQuotaScope) *corev1.ResourceQuota {
	return &corev1.ResourceQuota{
		ObjectMeta: named(name),
		Spec:       corev1.ResourceQuotaSpec{Hard: amounts(hard), Scopes: scopes},
		Status:     corev1.ResourceQuotaStatus{Hard: amounts(hard), Used: amounts(used)},
	}
}

// used is the usage in the status of a quota.
func (w *world) used(name string) string {
	obj, err := w.Get(context.Background(), resourceQuotas, "team", name)
	if err != nil {
		return err.Error()
	}
	return quota.Format(obj.(*corev1.ResourceQuota).Status.Used)
}

func service(kind corev1.ServiceType, ports int) *corev1.Service {
	return &corev1.Service{ObjectMeta: named("svc"), Spec: corev1.ServiceSpec{Type: kind, Ports: make([]corev1.ServicePort, ports)}}
}

func claim(class, size string) *corev1.PersistentVolumeClaim {
	c := &corev1.PersistentVolumeClaim{ObjectMeta: named("data"), Spec: corev1.PersistentVolumeClaimSpec{Resources: corev1.VolumeResourceRequirements{Requests: amounts("storage=" + size)}}}
	if class != "" {
		c.Spec.StorageClassName = &class
	}
	return c
}

func TestResourceQuota(t *testing.T) {
	deadline := func(p *corev1.Pod) { p.Spec.ActiveDeadlineSeconds = ptr(int64(5)) }
	high := func(p *corev1.Pod) { p.Spec.PriorityClassName = "high" }
	dry := func(a *Attributes) { a.DryRun = true }
	old := pod(asks(0, "cpu=1", ""))
	old.ResourceVersion = "1"
	for name, c := range map[string]struct {
		quotas []*corev1.ResourceQuota
		a      *Attributes
		want   string
		used   string // of the first quota afterwards
	}{
		"room":     {[]*corev1.ResourceQuota{newQuota("q", "pods=3", "pods=2")}, creating(pod()), "", "pods=3"},
		"no room":  {[]*corev1.ResourceQuota{newQuota("x", "pods=3", "pods=3")}, creating(pod()), `pods "web" is forbidden: exceeded quota: x, requested: pods=1, used: pods=3, limited: pods=3`, "pods=3"},
		"dry run":  {[]*corev1.ResourceQuota{newQuota("q", "pods=3", "pods=2")}, creating(pod(), dry), "", "pods=2"},
		"dry full": {[]*corev1.ResourceQuota{newQuota("q", "pods=3", "pods=3")}, creating(pod(), dry), "exceeded quota", "pods=3"},
		"needs": {[]*corev1.ResourceQuota{newQuota("q", "cpu=2 limits.memory=1Gi", "cpu=0 limits.memory=0")}, creating(pod(asks(0, "cpu=1", "memory=1Gi"))), "",
			"cpu=1,limits.memory=1Gi"},
		"says nothing": {[]*corev1.ResourceQuota{newQuota("q", "cpu=2 limits.memory=1Gi", "cpu=0 limits.memory=0")}, creating(pod(everyKind)),
			`pods "web" is forbidden: failed quota: q: must specify cpu for: main,prepare; limits.memory for: main,prepare`, "cpu=0,limits.memory=0"},
		"says it once": {[]*corev1.ResourceQuota{newQuota("q", "requests.cpu=2", "requests.cpu=0")}, creating(pod(func(p *corev1.Pod) {
			p.Spec.Resources = &corev1.ResourceRequirements{Requests: amounts("cpu=2")}
		})), "", "requests.cpu=2"},
		"init container counts": {[]*corev1.ResourceQuota{newQuota("q", "requests.cpu=2", "requests.cpu=0")}, creating(pod(asks(0, "cpu=1", ""), func(p *corev1.Pod) {
			p.Spec.InitContainers = []corev1.Container{{Name: "i", Resources: corev1.ResourceRequirements{Requests: amounts("cpu=3")}}}
		})), "exceeded quota: q, requested: requests.cpu=3, used: requests.cpu=0, limited: requests.cpu=2", "requests.cpu=0"},
		"extended": {[]*corev1.ResourceQuota{newQuota("q", "requests.example.com/gpu=1 hugepages-2Mi=4Mi", "requests.example.com/gpu=0 hugepages-2Mi=0")},
			creating(pod(asks(0, "example.com/gpu=1 hugepages-2Mi=2Mi", ""))), "", "hugepages-2Mi=2Mi,requests.example.com/gpu=1"},
		"not added up yet": {[]*corev1.ResourceQuota{newQuota("q", "pods=3 count/pods=9", "pods=2")}, creating(pod()), "status unknown for quota: q, resources: count/pods,pods", "pods=2"},
		"negative":         {[]*corev1.ResourceQuota{newQuota("q", "requests.cpu=3", "requests.cpu=2")}, creating(pod(asks(0, "cpu=-1", ""))), "quota usage is negative for resource(s): cpu,requests.cpu", "requests.cpu=2"},
		"two, one full": {[]*corev1.ResourceQuota{newQuota("a", "pods=3", "pods=2"), newQuota("b", "count/pods=1", "count/pods=1")}, creating(pod()),
			"exceeded quota: b, requested: count/pods=1, used: count/pods=1, limited: count/pods=1", "pods=2"},

		"scope holds":          {[]*corev1.ResourceQuota{newQuota("q", "pods=1", "pods=1", corev1.ResourceQuotaScopeTerminating)}, creating(pod(deadline)), "exceeded quota: q", "pods=1"},
		"scope does not":       {[]*corev1.ResourceQuota{newQuota("q", "pods=1", "pods=1", corev1.ResourceQuotaScopeTerminating)}, creating(pod()), "", "pods=1"},
		"best effort":          {[]*corev1.ResourceQuota{newQuota("q", "pods=1", "pods=1", corev1.ResourceQuotaScopeBestEffort)}, creating(pod()), "exceeded quota: q", "pods=1"},
		"not best effort":      {[]*corev1.ResourceQuota{newQuota("q", "pods=1", "pods=1", corev1.ResourceQuotaScopeNotBestEffort)}, creating(pod()), "", "pods=1"},
		"priority":             {[]*corev1.ResourceQuota{newQuota("q", "pods=1", "pods=1", corev1.ResourceQuotaScopePriorityClass)}, creating(pod(high)), "exceeded quota: q", "pods=1"},
		"not in both scopes":   {[]*corev1.ResourceQuota{newQuota("q", "pods=1", "pods=1", corev1.ResourceQuotaScopeTerminating, corev1.ResourceQuotaScopePriorityClass)}, creating(pod(high)), "", "pods=1"},
		"moves into the scope": {[]*corev1.ResourceQuota{newQuota("q", "pods=1", "pods=1", corev1.ResourceQuotaScopeTerminating)}, updating(old, pod(deadline)), "exceeded quota: q", "pods=1"},
		"charged in full when it moves": {[]*corev1.ResourceQuota{newQuota("q", "requests.cpu=5", "requests.cpu=0", corev1.ResourceQuotaScopeTerminating)},
			updating(old, pod(deadline, asks(0, "cpu=1", ""))), "", "requests.cpu=1"},
		"stays in the scope": {[]*corev1.ResourceQuota{newQuota("q", "pods=1", "pods=1", corev1.ResourceQuotaScopeTerminating)}, updating(pod(deadline), pod(deadline)), "", "pods=1"},
		"update":             {[]*corev1.ResourceQuota{newQuota("q", "pods=1", "pods=1")}, updating(old, pod()), "", "pods=1"},
		"resize":             {[]*corev1.ResourceQuota{newQuota("q", "requests.cpu=5", "requests.cpu=1")}, updating(old, pod(asks(0, "cpu=3", "")), sub("resize")), "", "requests.cpu=3"},
		"resize too far":     {[]*corev1.ResourceQuota{newQuota("q", "requests.cpu=2", "requests.cpu=1")}, updating(old, pod(asks(0, "cpu=3", "")), sub("resize")), "exceeded quota: q, requested: requests.cpu=2, used: requests.cpu=1", "requests.cpu=1"},
		"shrink":             {[]*corev1.ResourceQuota{newQuota("q", "requests.cpu=2", "requests.cpu=1")}, updating(old, pod(asks(0, "cpu=500m", "")), sub("resize")), "", "requests.cpu=1"},
		"status":             {[]*corev1.ResourceQuota{newQuota("q", "pods=1", "pods=1")}, updating(old, pod(deadline), sub("status")), "", "pods=1"},
		"binding":            {[]*corev1.ResourceQuota{newQuota("q", "pods=1", "pods=1")}, creating(pod(), sub("binding")), unhandled, "pods=1"},
		"delete":             {[]*corev1.ResourceQuota{newQuota("q", "pods=1", "pods=1")}, write(Delete, pod()), unhandled, "pods=1"},

		"node ports": {[]*corev1.ResourceQuota{newQuota("q", "services.nodeports=3 services=9", "services.nodeports=2 services=0")}, creating(service("NodePort", 2)),
			"exceeded quota: q, requested: services.nodeports=2, used: services.nodeports=2, limited: services.nodeports=3", "services=0,services.nodeports=2"},
		"becomes a load balancer": {[]*corev1.ResourceQuota{newQuota("q", "services.loadbalancers=0", "services.loadbalancers=0")}, updating(service("ClusterIP", 1), service("LoadBalancer", 1)),
			"exceeded quota: q, requested: services.loadbalancers=1", "services.loadbalancers=0"},
		"storage": {[]*corev1.ResourceQuota{newQuota("q", "gold.storageclass.storage.k8s.io/requests.storage=10Gi requests.storage=100Gi", "gold.storageclass.storage.k8s.io/requests.storage=6Gi requests.storage=6Gi")},
			creating(claim("gold", "5Gi")), "exceeded quota: q, requested: gold.storageclass.storage.k8s.io/requests.storage=5Gi, used: gold.storageclass.storage.k8s.io/requests.storage=6Gi",
			"gold.storageclass.storage.k8s.io/requests.storage=6Gi,requests.storage=6Gi"},
		"storage grows":   {[]*corev1.ResourceQuota{newQuota("q", "requests.storage=8Gi", "requests.storage=5Gi")}, updating(claim("", "5Gi"), claim("", "7Gi")), "", "requests.storage=7Gi"},
		"another class":   {[]*corev1.ResourceQuota{newQuota("q", "gold.storageclass.storage.k8s.io/requests.storage=1Gi", "gold.storageclass.storage.k8s.io/requests.storage=0")}, creating(claim("tin", "5Gi")), "", "gold.storageclass.storage.k8s.io/requests.storage=0"},
		"config map":      {[]*corev1.ResourceQuota{newQuota("q", "configmaps=1 count/configmaps=1", "configmaps=1 count/configmaps=0")}, creating(&corev1.ConfigMap{ObjectMeta: named("c")}), "exceeded quota: q, requested: configmaps=1", "configmaps=1,count/configmaps=0"},
		"secret by count": {[]*corev1.ResourceQuota{newQuota("q", "count/secrets=1", "count/secrets=0")}, creating(&corev1.Secret{ObjectMeta: named("s")}), "", "count/secrets=1"},
		"event":           {[]*corev1.ResourceQuota{newQuota("q", "count/events=0", "count/events=0")}, creating(&corev1.Event{ObjectMeta: named("e")}), unhandled, "count/events=0"},
		"namespace":       {[]*corev1.ResourceQuota{newQuota("q", "pods=1", "pods=0")}, creating(namespace("team")), unhandled, "pods=0"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld()
			for _, q := range c.quotas {
				w.put(q)
			}
			r := newResourceQuota(w.env, nil)
			want(t, try(r, c.a), c.want)
			if got := w.used(c.quotas[0].Name); got != c.used {
				t.Errorf("used %s, want %s", got, c.used)
			}
			// Every charge can be refunded.
			r.Undo(context.Background(), c.a)
			if got, had := w.used(c.quotas[0].Name), quota.Format(c.quotas[0].Status.Used); got != had {
				t.Errorf("after the refund %s, before the charge %s", got, had)
			}
		})
	}
}

func TestLimitedResources(t *testing.T) {
	limited := []quota.LimitedResource{
		{Resource: "pods", MatchScopes: []corev1.ScopedResourceSelectorRequirement{{ScopeName: "PriorityClass", Operator: "In", Values: []string{"high"}}}},
		{Resource: "persistentvolumeclaims", MatchContains: []string{".storageclass.storage.k8s.io/requests.storage"}},
	}
	high := pod(func(p *corev1.Pod) { p.Spec.PriorityClassName = "high" })
	scoped := newQuota("q", "pods=5", "pods=0")
	scoped.Spec.ScopeSelector = &corev1.ScopeSelector{MatchExpressions: limited[0].MatchScopes}
	for name, c := range map[string]struct {
		w    *world
		a    *Attributes
		want string
	}{
		"ordinary pod":      {newWorld(), creating(pod()), ""},
		"high without":      {newWorld(), creating(high.DeepCopy()), "insufficient quota to match these scopes: [{PriorityClass In [high]}]"},
		"high with another": {newWorld(newQuota("q", "pods=5", "pods=0")), creating(high.DeepCopy()), "insufficient quota to match these scopes"},
		"high with":         {newWorld(scoped), creating(high.DeepCopy()), ""},
		"claim without":     {newWorld(), creating(claim("gold", "1Gi")), "insufficient quota to consume: gold.storageclass.storage.k8s.io/requests.storage"},
		"claim with":        {newWorld(newQuota("q", "gold.storageclass.storage.k8s.io/requests.storage=1Gi", "gold.storageclass.storage.k8s.io/requests.storage=0")), creating(claim("gold", "1Gi")), ""},
		"claim of none":     {newWorld(), creating(claim("", "1Gi")), ""},
	} {
		t.Run(name, func(t *testing.T) { want(t, try(newResourceQuota(c.w.env, limited), c.a), c.want) })
	}
}

// TestQuotaIsNeverExceeded: concurrent writers, some of which fail and are refunded.
func TestQuotaIsNeverExceeded(t *testing.T) {
	const hard, writers, rounds = 20, 16, 40
	w := newWorld(newQuota("a", fmt.Sprintf("pods=%d", hard), "pods=0"), newQuota("b", "requests.cpu=15", "requests.cpu=0"))
	plugins := []*resourceQuota{newResourceQuota(w.env, nil), newResourceQuota(w.env, nil)} // two servers on one store
	var mu sync.Mutex
	stored, most, refused := map[*Attributes]bool{}, 0, 0
	var wg sync.WaitGroup
	for i := range writers {
		wg.Go(func() {
			random := rand.New(rand.NewPCG(uint64(i), 7))
			for range rounds {
				r := plugins[random.IntN(len(plugins))]
				a := creating(pod(asks(0, "cpu=1", "")))
				switch err := r.Validate(context.Background(), a); {
				case err != nil:
					if !strings.Contains(err.Error(), "exceeded quota") {
						t.Error(err)
					}
					mu.Lock()
					refused++
					mu.Unlock()
				case random.IntN(2) == 0:
					r.Undo(context.Background(), a)
				default:
					mu.Lock()
					stored[a] = true
					most = max(most, len(stored))
					mu.Unlock()
				}
			}
		})
	}
	wg.Wait()
	if most > 15 || refused == 0 {
		t.Errorf("%d stored, %d rejected", most, refused)
	}
	// Two servers end one another's epochs, so some charges are not refunded; none is lost.
	for _, name := range []string{"a", "b"} {
		obj, err := w.Get(context.Background(), resourceQuotas, "team", name)
		if err != nil {
			t.Fatal(err)
		}
		for resource, used := range obj.(*corev1.ResourceQuota).Status.Used {
			hard := obj.(*corev1.ResourceQuota).Status.Hard[resource]
			if used.Cmp(hard) > 0 || used.Value() < int64(len(stored)) {
				t.Errorf("%s: %s of %s used, %d stored", name, used.String(), hard.String(), len(stored))
			}
		}
	}
}

// TestUndoRestores: on one server every failed write is refunded completely.
func TestUndoRestores(t *testing.T) {
	w := newWorld(newQuota("a", "pods=50 count/pods=60", "pods=3 count/pods=4"), newQuota("b", "requests.cpu=100 limits.cpu=100", "requests.cpu=1 limits.cpu=500m"))
	r := newResourceQuota(w.env, nil)
	var wg sync.WaitGroup
	for i := range 40 {
		wg.Go(func() {
			a := creating(pod(asks(0, fmt.Sprintf("cpu=%dm", 100+i), "cpu=1")))
			if err := r.Validate(context.Background(), a); err != nil {
				t.Error(err)
			}
			r.Undo(context.Background(), a)
			r.Undo(context.Background(), a) // a second call refunds nothing
		})
	}
	wg.Wait()
	if a, b := w.used("a"), w.used("b"); a != "count/pods=4,pods=3" || b != "limits.cpu=500m,requests.cpu=1" {
		t.Errorf("used %s and %s", a, b)
	}
	if len(r.queues) != 0 {
		t.Errorf("%d queues are left", len(r.queues))
	}
}

// TestUndoAfterRecalculation: what the controller has not counted must not be refunded.
func TestUndoAfterRecalculation(t *testing.T) {
	w := newWorld(newQuota("q", "pods=5", "pods=3"))
	r := newResourceQuota(w.env, nil)
	a := creating(pod())
	if err := r.Validate(context.Background(), a); err != nil {
		t.Fatal(err)
	}
	w.put(newQuota("q", "pods=5", "pods=3")) // the controller counts three pods
	r.Undo(context.Background(), a)
	if got := w.used("q"); got != "pods=3" {
		t.Errorf("used %s: a pod that was not counted was refunded", got)
	}
}

// TestConcurrentQuotaChange: a planned charge is checked again with the latest state of the quota.
func TestConcurrentQuotaChange(t *testing.T) {
	w := newWorld(newQuota("a", "count/pods=9", "count/pods=0"), newQuota("b", "pods=3", "pods=2"))
	once := sync.Once{}
	w.before = func(name string) {
		if name == "b" {
			once.Do(func() {
				w.mu.Lock()
				w.put(newQuota("b", "pods=3", "pods=3"))
				w.mu.Unlock()
			})
		}
	}
	want(t, try(newResourceQuota(w.env, nil), creating(pod())), "exceeded quota: b, requested: pods=1, used: pods=3, limited: pods=3")
	if a, b := w.used("a"), w.used("b"); a != "count/pods=0" || b != "pods=3" {
		t.Errorf("used %s and %s", a, b)
	}
}

// TestQuotaBatches: writers that wait together cost one write.
func TestQuotaBatches(t *testing.T) {
	w := newWorld(newQuota("q", "pods=1000", "pods=0"))
	r := newResourceQuota(w.env, nil)
	block, blocked := make(chan struct{}), make(chan struct{})
	once := sync.Once{}
	w.before = func(string) { once.Do(func() { close(blocked); <-block }) }
	var wg sync.WaitGroup
	admit := func() {
		if err := r.Validate(context.Background(), creating(pod())); err != nil {
			t.Error(err)
		}
	}
	wg.Go(admit)
	<-blocked
	for range 50 {
		wg.Go(admit)
	}
	for {
		r.mu.Lock()
		n := len(r.queues["team"].waiting)
		r.mu.Unlock()
		if n == 50 {
			break
		}
	}
	close(block)
	wg.Wait()
	if w.writes != 2 || w.used("q") != "pods=51" {
		t.Errorf("%d writes, used %s", w.writes, w.used("q"))
	}
}

// TestQuotaSurvivesAPanic: a panic must neither admit the other writers nor block the namespace.
func TestQuotaSurvivesAPanic(t *testing.T) {
	w := newWorld(newQuota("q", "pods=3", "pods=0"))
	r := newResourceQuota(w.env, nil)
	w.before = func(string) { panic("broken") }
	a := creating(pod())
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the panic is hidden")
			}
		}()
		_ = r.Validate(context.Background(), a)
	}()
	w.before = nil
	want(t, try(r, creating(pod())), "")
	if got := w.used("q"); got != "pods=1" || len(r.queues) != 0 {
		t.Errorf("used %s, %d queues", got, len(r.queues))
	}
}

func BenchmarkQuota(b *testing.B) {
	for name, w := range map[string]*world{"none": newWorld(), "one": newWorld(newQuota("q", "pods=1000000000", "pods=0"))} {
		b.Run(name, func(b *testing.B) {
			r := newResourceQuota(w.env, nil)
			a := creating(pod(asks(0, "cpu=1", "")))
			b.ReportAllocs()
			for b.Loop() {
				if err := r.Validate(context.Background(), a); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
