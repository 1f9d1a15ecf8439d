package controllers_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	batchv1 "k8s.io/api/batch/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"skiff/internal/client"
	"skiff/internal/controller"
	"skiff/internal/controllers"
	"skiff/internal/localpath"
	"skiff/test/world"
)

// rejection is the response to all writes.
type rejection struct {
	code   int
	reason metav1.StatusReason
	// tries is how often the client sends a request: it waits and tries again when the server is overloaded.
	tries int
}

// rejectingServer rejects all writes and counts them by controller and path.
type rejectingServer struct {
	rejection

	mu     sync.Mutex
	writes map[string]int
}

// of is the server as a controller accesses it.
func (s *rejectingServer) of(local client.Local, who string) client.Local {
	return rejectingLocal{local, s, who}
}

type rejectingLocal struct {
	client.Local
	server *rejectingServer
	who    string
}

func (l rejectingLocal) Transport() http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		if r.Method == http.MethodGet || strings.HasSuffix(r.URL.Path, "reviews") {
			return l.Local.Transport().RoundTrip(r)
		}
		l.server.mu.Lock()
		l.server.writes[l.who+": "+r.Method+" "+r.URL.Path]++
		l.server.mu.Unlock()
		body, err := json.Marshal(metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
			Status: metav1.StatusFailure, Code: int32(l.server.code), Reason: l.server.reason, Message: "rejected"})
		if err != nil {
			return nil, err
		}
		header := http.Header{"Content-Type": {"application/json"}}
		if l.server.code == http.StatusTooManyRequests {
			header.Set("Retry-After", "1")
		}
		return &http.Response{StatusCode: l.server.code, Header: header, Body: io.NopCloser(bytes.NewReader(body)), Request: r}, nil
	})
}

// TestRejectedWrites runs all controllers against a server that rejects every write. Each controller tries again, but ever more rarely: no
// request is sent more often than the autoscaler's period allows, and no controller syncs without pause.
func TestRejectedWrites(t *testing.T) {
	const span = time.Hour
	settings := clusterSettings()
	settings.Autoscaler = nil
	perRequest := int(span/(15*time.Second)) + 30
	for _, test := range []rejection{
		{http.StatusForbidden, metav1.StatusReasonForbidden, 1},
		{http.StatusConflict, metav1.StatusReasonConflict, 5}, // some read again and retry at once
		{http.StatusInternalServerError, metav1.StatusReasonInternalError, 1},
		{http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests, 11},
	} {
		t.Run(fmt.Sprint(test.code), func(t *testing.T) {
			world.In(t, func(w *world.World) {
				fillCluster(w, 2)
				fillUnfinished(w)
				server := &rejectingServer{rejection: test, writes: map[string]int{}}
				registry := prometheus.NewRegistry()
				definitions := controllers.All(settings)
				runRejected(w, server, registry, definitions)
				w.Pass(span)
				server.check(t, definitions, perRequest*test.tries)
				checkSyncs(t, registry)
			})
		})
	}
}

// runRejected runs controllers whose writes are rejected.
func runRejected(w *world.World, server *rejectingServer, registry *prometheus.Registry, definitions []controller.Definition) {
	w.T.Helper()
	metrics, err := controller.NewMetrics(registry)
	if err != nil {
		w.T.Fatal(err)
	}
	informers := client.NewInformers(w.Client)
	var loops []*controller.Loop
	for _, d := range definitions {
		loop, err := controller.NewLoop(d, controller.Environment{
			Client: w.ClientOf(server.of(w.Local(), d.Name)), Informers: informers, Metrics: metrics, Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			w.T.Fatal(err)
		}
		loops = append(loops, loop)
	}
	go func() { _ = informers.Run(w.Ctx) }()
	if err := informers.WaitForSync(w.Ctx); err != nil {
		w.T.Fatal(err)
	}
	for _, loop := range loops {
		go func() {
			if err := loop.Run(w.Ctx); err != nil && w.Ctx.Err() == nil {
				w.T.Error(err)
			}
		}()
	}
}

// fillUnfinished creates what the controllers have to write for that have nothing to do in a filled cluster.
func fillUnfinished(w *world.World) {
	world.Create(w, policyAbout("unchecked", "object.spec.nosuch == 1"))
	world.Create(w, migrationOf("waiting", "configmaps"))
	world.Edit(w, "", "n1", func(n *corev1.Node) {
		metav1.SetMetaDataAnnotation(&n.ObjectMeta, localpath.DirAnnotation, "/volumes")
		n.Spec.Taints = []corev1.Taint{{Key: "example.com/broken", Effect: corev1.TaintEffectNoExecute}}
	})
	world.Create(w, boundPod("lost", "lost", "gone"))
	expired := bootstrapToken("bbbbbb")
	expired.Data["expiration"] = []byte(time.Now().Add(-time.Hour).UTC().Format(time.RFC3339))
	world.Create(w, expired)
	child := &corev1.ConfigMap{ObjectMeta: meta("child")}
	child.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: "gone", UID: "1"}}
	world.Create(w, child)
	world.Create(w, clusterRole("part", map[string]string{"into": "all"}))
	world.Edit(w, "default", "cron-0", func(c *batchv1.CronJob) { c.Spec.Schedule = "* * * * *" })
	world.Create(w, &storagev1.VolumeAttributesClass{ObjectMeta: metav1.ObjectMeta{Name: "gold"}, DriverName: "disk.example.com", Parameters: map[string]string{"iops": "1"}})
	world.Create(w, pod("scratch", func(p *corev1.Pod) {
		p.Spec.Volumes = []corev1.Volume{{Name: "scratch", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{
			VolumeClaimTemplate: &corev1.PersistentVolumeClaimTemplate{Spec: claim("", "static").Spec}}}}}
	}))
	world.Create(w, claimTemplate("unused"))
	world.Create(w, pod("devices", withTemplate("unused")))
	world.Create(w, taintRule("broken", resourceapi.DeviceTaintEffectNoSchedule))
	world.Create(w, &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: "apiserver-1", Labels: map[string]string{"apiserver.kubernetes.io/identity": "kube-apiserver"}},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: new("apiserver-1"), RenewTime: new(metav1.NewMicroTime(time.Now().Add(-2 * time.Hour))), LeaseDurationSeconds: new(int32(3600))}})
	approved := world.Create(w, certificateRequest(w, "approved")).DeepCopy()
	approved.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: "Test"}}
	if _, err := client.For[*certificatesv1.CertificateSigningRequest](w.Client).Update(w.Ctx, approved, client.WriteOptions{Subresource: "approval"}); err != nil {
		w.T.Fatal(err)
	}
	// As the binder would.
	bound := world.Get[*corev1.PersistentVolumeClaim](w, "default", "disk0")
	world.Edit(w, "", "disk0", func(v *corev1.PersistentVolume) {
		v.Spec.ClaimRef = &corev1.ObjectReference{Kind: "PersistentVolumeClaim", Namespace: bound.Namespace, Name: bound.Name, UID: bound.UID}
	})
	world.EditStatus(w, "default", "disk0", func(c *corev1.PersistentVolumeClaim) { c.Status.Phase = corev1.ClaimBound })
	w.Remove(world.Get[*corev1.Namespace](w, "", "space1"))
	removed := diskVolume("removed", corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/volumes/pvc-removed"}})
	removed.Spec.PersistentVolumeReclaimPolicy, removed.Finalizers = corev1.PersistentVolumeReclaimDelete, []string{localpath.Finalizer}
	removed.Annotations = map[string]string{"pv.kubernetes.io/provisioned-by": localpath.Provisioner, "skiff.io/local-path-node": "n1"}
	w.Remove(world.Create(w, removed))
}

// noWrites are the controllers that have nothing to write in the cluster of TestRejectedWrites, and why.
var noWrites = map[string]string{
	"ttl-after-finished-controller":                  "no job is finished",
	"certificatesigningrequest-cleaner-controller":   "no request is old",
	"podcertificaterequest-cleaner-controller":       "there is no request",
	"legacy-serviceaccount-token-cleaner-controller": "no token is old",
	"kubelet-serving-approving-controller":           "all requests are for client certificates",
	"persistentvolume-expander-controller":           "it only records events",
}

// check fails if a request was sent too often, or if a controller sent none and was expected to.
func (s *rejectingServer) check(t *testing.T, definitions []controller.Definition, limit int) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	wrote := map[string]bool{}
	for _, write := range slices.Sorted(maps.Keys(s.writes)) {
		who, _, _ := strings.Cut(write, ": ")
		wrote[who] = true
		if n := s.writes[write]; n > limit {
			t.Errorf("%s: %d times in an hour", write, n)
		}
	}
	for _, d := range definitions {
		if _, idle := noWrites[d.Name]; wrote[d.Name] == idle {
			t.Errorf("%s wrote: %t", d.Name, wrote[d.Name])
		}
	}
}

// checkSyncs fails if a controller synced more often than all its keys with the shortest period could.
func checkSyncs(t *testing.T, registry *prometheus.Registry) {
	t.Helper()
	const limit = 5000
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() != "controller_syncs_total" {
			continue
		}
		for _, metric := range family.Metric {
			if n := metric.GetCounter().GetValue(); n > limit {
				t.Errorf("%v: %v syncs", metric.GetLabel(), n)
			}
		}
	}
}

// TestOwnerOfUnknownKind: an object whose owner has a kind that the server does not serve is checked ever more rarely.
func TestOwnerOfUnknownKind(t *testing.T) {
	world.In(t, func(w *world.World) {
		child := &corev1.ConfigMap{ObjectMeta: meta("child")}
		child.OwnerReferences = []metav1.OwnerReference{{APIVersion: "example.com/v1", Kind: "Unknown", Name: "gone", UID: "1"}}
		world.Create(w, child)
		m := measureNamed(w, "garbagecollector")
		defer m.stop()
		w.Pass(time.Hour)
		if n := m.syncs(t); n == 0 || n > 30 {
			t.Errorf("%d syncs in an hour", n)
		}
	})
}
