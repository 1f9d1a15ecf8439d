package cleanup

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"skiff/internal/client"
	"skiff/internal/controller"
	"skiff/internal/pki"
	"skiff/test/inprocess"
)

func TestDoomedPods(t *testing.T) {
	now := metav1.Now()
	pod := func(name, node string, phase corev1.PodPhase, change ...func(*corev1.Pod)) *corev1.Pod {
		p := podOf("default", name)
		p.Spec.NodeName, p.Status.Phase = node, phase
		p.CreationTimestamp = metav1.NewTime(now.Add(-time.Hour))
		for _, c := range change {
			c(p)
		}
		return p
	}
	deleted := func(p *corev1.Pod) { p.DeletionTimestamp = &now }
	aged := func(hours int) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.CreationTimestamp = metav1.NewTime(now.Add(-time.Duration(hours) * time.Hour)) }
	}
	evicted := func(p *corev1.Pod) { p.Status.Reason = "Evicted" }
	node := func(ready corev1.ConditionStatus, taints ...string) *corev1.Node {
		n := &corev1.Node{Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready}}}}
		for _, taint := range taints {
			n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: taint})
		}
		return n
	}
	nodes := map[string]*corev1.Node{
		"good": node(corev1.ConditionTrue), "down": node(corev1.ConditionFalse),
		"out": node(corev1.ConditionUnknown, corev1.TaintNodeOutOfService), "back": node(corev1.ConditionTrue, corev1.TaintNodeOutOfService),
	}
	const running, succeeded, failed = corev1.PodRunning, corev1.PodSucceeded, corev1.PodFailed
	for _, test := range []struct {
		what string
		keep int
		pods []*corev1.Pod
		want string
	}{
		{"nothing wrong", 10, []*corev1.Pod{pod("a", "good", running), pod("b", "", corev1.PodPending)}, ""},
		{"a node that is gone", 10, []*corev1.Pod{pod("a", "gone", running), pod("b", "missing", running)}, "a!"},
		{"deleted without a node", 10, []*corev1.Pod{pod("a", "", corev1.PodPending, deleted), pod("b", "good", running, deleted)}, "a"},
		{"deleted on a node out of service", 10, []*corev1.Pod{pod("a", "out", running, deleted), pod("b", "back", running, deleted), pod("c", "down", running, deleted), pod("d", "out", running)}, "a"},
		{"ended, as many as are kept", 2, []*corev1.Pod{pod("a", "good", succeeded), pod("b", "good", failed)}, ""},
		{"ended, the oldest", 1, []*corev1.Pod{pod("a", "good", succeeded), pod("b", "good", failed, aged(3)), pod("c", "good", succeeded, aged(2))}, "b c"},
		{"ended, evicted ones first", 1, []*corev1.Pod{pod("a", "good", failed, evicted), pod("b", "good", failed, aged(3))}, "a"},
		{"ended, all are kept", 0, []*corev1.Pod{pod("a", "good", succeeded), pod("b", "good", succeeded)}, ""},
		{"for two reasons, once", 1, []*corev1.Pod{pod("a", "gone", failed), pod("b", "good", failed)}, "a!"},
	} {
		var got []string
		for _, d := range (podsView{pods: test.pods, nodes: nodes, gone: map[string]bool{"gone": true, "missing": false}, keep: test.keep}).doomed() {
			name := d.pod.Name
			if d.condition != nil {
				name += "!"
			}
			got = append(got, name)
			plan := d.plan()
			ended := d.pod.Status.Phase == succeeded || d.pod.Status.Phase == failed
			if last := plan.Steps[len(plan.Steps)-1].Writes[0]; *last.Delete.GracePeriodSeconds != 0 || (len(plan.Steps) == 1) != ended {
				t.Errorf("%s: %s: %+v", test.what, d.pod.Name, plan)
			}
		}
		if text := strings.Join(got, " "); text != test.want {
			t.Errorf("%s: %q, want %q", test.what, text, test.want)
		}
	}
}

func TestMissingNodesAreQuarantined(t *testing.T) {
	c := inprocess.Start(t, t.Context())
	create(t, c, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "unseen"}})
	cleaner := &podCleaner{setup: &controller.Setup{Client: c}, missing: map[string]time.Time{}}
	on := func(node string) *corev1.Pod { p := podOf("default", node); p.Spec.NodeName = node; return p }
	v := podsView{pods: []*corev1.Pod{on("lost"), on("unseen"), on("here")}, nodes: map[string]*corev1.Node{"here": {}}}
	now := time.Now()
	for _, test := range []struct {
		after time.Duration
		gone  []string
	}{{0, nil}, {30 * time.Second, nil}, {41 * time.Second, []string{"lost"}}} {
		gone, err := cleaner.goneNodes(t.Context(), v, now.Add(test.after))
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for name, is := range gone {
			if is {
				names = append(names, name)
			}
		}
		if !slices.Equal(names, test.gone) {
			t.Errorf("after %v: %v, want %v", test.after, names, test.gone)
		}
	}
	v.nodes["lost"] = &corev1.Node{}
	if _, err := cleaner.goneNodes(t.Context(), v, now.Add(time.Minute)); err != nil || !cleaner.missing["lost"].IsZero() {
		t.Errorf("a node that is back is still missing: %v, %v", cleaner.missing, err)
	}
}

func TestPodsOutOfServiceGo(t *testing.T) {
	c := inprocess.Start(t, t.Context())
	create(t, c, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "out"}, Spec: corev1.NodeSpec{Taints: []corev1.Taint{{Key: corev1.TaintNodeOutOfService, Effect: corev1.TaintEffectNoExecute}}}})
	pod := podOf("default", "lost")
	pod.Spec.NodeName, pod.Finalizers = "out", []string{"example.com/hold"}
	create(t, c, pod)
	pods := client.For[*corev1.Pod](c)
	if err := pods.Delete(t.Context(), "default", "lost", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	run(t, c, Pods(TerminatedPods))
	eventually(t, "the pod has failed and its grace is over", func() bool {
		found, err := pods.Get(t.Context(), "default", "lost")
		if err != nil {
			t.Fatal(err)
		}
		return found.Status.Phase == corev1.PodFailed && *found.DeletionGracePeriodSeconds == 0
	})
}

func TestCertificateRequestsAreOver(t *testing.T) {
	now := time.Now()
	authority, err := pki.NewAuthority("test", now.Add(-48*time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	certificate := func(life time.Duration) []byte {
		pair, err := authority.Issue(pki.Leaf{CommonName: "x", Life: life}, now.Add(-24*time.Hour))
		if err != nil {
			t.Fatal(err)
		}
		return pair.Cert
	}
	type request = certificatesv1.CertificateSigningRequest
	condition := func(of certificatesv1.RequestConditionType, age time.Duration) func(*request) {
		return func(r *request) {
			r.Status.Conditions = append(r.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{Type: of, LastUpdateTime: metav1.NewTime(now.Add(-age))})
		}
	}
	issued := func(life time.Duration) func(*request) {
		return func(r *request) { r.Status.Certificate = certificate(life) }
	}
	for _, test := range []struct {
		what    string
		age     time.Duration
		changes []func(*request)
		over    bool
	}{
		{"pending", 23 * time.Hour, nil, false},
		{"pending too long", 25 * time.Hour, nil, true},
		{"denied", 2 * time.Hour, []func(*request){condition(certificatesv1.CertificateDenied, 30*time.Minute)}, false},
		{"denied long ago", 2 * time.Hour, []func(*request){condition(certificatesv1.CertificateDenied, 2*time.Hour)}, true},
		{"failed long ago", 2 * time.Hour, []func(*request){condition(certificatesv1.CertificateFailed, 2*time.Hour)}, true},
		{"approved, not issued", 12 * time.Hour, []func(*request){condition(certificatesv1.CertificateApproved, 12*time.Hour)}, false},
		{"approved, never issued", 26 * time.Hour, []func(*request){condition(certificatesv1.CertificateApproved, 25*time.Hour)}, true},
		{"issued", time.Hour, []func(*request){condition(certificatesv1.CertificateApproved, time.Minute), issued(48 * time.Hour)}, false},
		{"issued long ago", 3 * time.Hour, []func(*request){condition(certificatesv1.CertificateApproved, 2*time.Hour), issued(48 * time.Hour)}, true},
		{"issued and past", time.Hour, []func(*request){condition(certificatesv1.CertificateApproved, time.Minute), issued(time.Hour)}, true},
	} {
		r := &request{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(now.Add(-test.age))}}
		for _, change := range test.changes {
			change(r)
		}
		if got := requestIsOver(r, now); got != test.over {
			t.Errorf("%s: over %v", test.what, got)
		}
	}
}

func TestServerLeases(t *testing.T) {
	now := time.Now()
	lease := func(change func(*coordinationv1.Lease)) *coordinationv1.Lease {
		renewed, seconds := metav1.NewMicroTime(now.Add(-2*time.Hour)), int32(3600)
		l := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Labels: map[string]string{"apiserver.kubernetes.io/identity": "kube-apiserver"}},
			Spec: coordinationv1.LeaseSpec{RenewTime: &renewed, LeaseDurationSeconds: &seconds}}
		change(l)
		return l
	}
	for what, test := range map[string]struct {
		change func(*coordinationv1.Lease)
		over   bool
	}{
		"past":            {func(*coordinationv1.Lease) {}, true},
		"current":         {func(l *coordinationv1.Lease) { renewed := metav1.NewMicroTime(now); l.Spec.RenewTime = &renewed }, false},
		"never renewed":   {func(l *coordinationv1.Lease) { l.Spec.RenewTime = nil }, true},
		"another's":       {func(l *coordinationv1.Lease) { l.Labels = nil }, false},
		"another's place": {func(l *coordinationv1.Lease) { l.Namespace = "default" }, false},
	} {
		if got := serverLeaseIsOver(lease(test.change), now); got != test.over {
			t.Errorf("%s: over %v", what, got)
		}
	}
}

func TestLegacyTokens(t *testing.T) {
	now := time.Date(2026, 6, 15, 12, 0, 0, 0, time.UTC)
	const life = 100 * day
	before := func(days int) string { return now.Add(-time.Duration(days) * day).Format(time.DateOnly) }
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{UID: "1"}, Secrets: []corev1.ObjectReference{{Name: "token"}}}
	for _, test := range []struct {
		what    string
		age     int
		labels  map[string]string
		change  func(*corev1.Secret)
		account *corev1.ServiceAccount
		want    tokenVerdict
	}{
		{"old and never used", 200, nil, nil, account, invalidateToken},
		{"young", 50, nil, nil, account, keepToken},
		{"used lately", 200, map[string]string{lastUsedLabel: before(10)}, nil, account, keepToken},
		{"used on the last day that counts", 200, map[string]string{lastUsedLabel: before(100)}, nil, account, keepToken},
		{"used long ago", 200, map[string]string{lastUsedLabel: before(101)}, nil, account, invalidateToken},
		{"used at a time nobody can read", 200, map[string]string{lastUsedLabel: "yesterday"}, nil, account, keepToken},
		{"invalid since lately", 200, map[string]string{invalidSinceLabel: before(10)}, nil, account, keepToken},
		{"invalid for long", 300, map[string]string{invalidSinceLabel: before(150)}, nil, account, deleteToken},
		{"made by hand", 200, nil, nil, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{UID: "1"}}, keepToken},
		{"of an account that is gone", 200, nil, nil, nil, keepToken},
		{"of a former account", 200, nil, func(s *corev1.Secret) { s.Annotations[corev1.ServiceAccountUIDKey] = "0" }, account, keepToken},
		{"another secret", 200, nil, func(s *corev1.Secret) { s.Type = corev1.SecretTypeOpaque }, account, keepToken},
	} {
		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "token", Labels: test.labels, Annotations: map[string]string{corev1.ServiceAccountUIDKey: "1"},
			CreationTimestamp: metav1.NewTime(now.Add(-time.Duration(test.age) * day))}, Type: corev1.SecretTypeServiceAccountToken}
		if test.change != nil {
			test.change(secret)
		}
		if got := (tokenView{secret: secret, account: test.account, life: life, now: now}).verdict(); got != test.want {
			t.Errorf("%s: %v, want %v", test.what, got, test.want)
		}
	}
	for since, want := range map[string]bool{before(102): true, before(100): false, "": false} {
		if got := trackedFor(&corev1.ConfigMap{Data: map[string]string{"since": since}}, life, now); got != want {
			t.Errorf("tracked since %q: %v", since, got)
		}
	}
	if trackedFor(nil, life, now) {
		t.Error("what is not tracked is tracked")
	}
}

func TestSecretsOfPods(t *testing.T) {
	ref := &corev1.LocalObjectReference{Name: "x"}
	for i, pod := range []corev1.PodSpec{
		{ImagePullSecrets: []corev1.LocalObjectReference{*ref}},
		{Containers: []corev1.Container{{EnvFrom: []corev1.EnvFromSource{{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: *ref}}}}}},
		{InitContainers: []corev1.Container{{Env: []corev1.EnvVar{{ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{LocalObjectReference: *ref}}}}}}},
		{Volumes: []corev1.Volume{{VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "x"}}}}},
		{Volumes: []corev1.Volume{{VolumeSource: corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{NodePublishSecretRef: ref}}}}},
		{Volumes: []corev1.Volume{{VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
			Sources: []corev1.VolumeProjection{{}, {Secret: &corev1.SecretProjection{LocalObjectReference: *ref}}}}}}}},
	} {
		if names := secretsOf(&corev1.Pod{Spec: pod}); fmt.Sprint(names) != "[x]" {
			t.Errorf("%d: %v", i, names)
		}
	}
	if names := secretsOf(&corev1.Pod{Spec: corev1.PodSpec{Volumes: []corev1.Volume{{VolumeSource: corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{}}}}}}); len(names) > 0 {
		t.Errorf("%v", names)
	}
	for i, source := range []corev1.VolumeSource{
		{AzureFile: &corev1.AzureFileVolumeSource{SecretName: "x"}}, {CephFS: &corev1.CephFSVolumeSource{SecretRef: ref}}, {Cinder: &corev1.CinderVolumeSource{SecretRef: ref}},
		{FlexVolume: &corev1.FlexVolumeSource{SecretRef: ref}}, {RBD: &corev1.RBDVolumeSource{SecretRef: ref}}, {ScaleIO: &corev1.ScaleIOVolumeSource{SecretRef: ref}},
		{ISCSI: &corev1.ISCSIVolumeSource{SecretRef: ref}}, {StorageOS: &corev1.StorageOSVolumeSource{SecretRef: ref}},
	} {
		if names := secretsOfVolume(&source); fmt.Sprint(names) != "[x]" {
			t.Errorf("volume %d: %v", i, names)
		}
	}
	if names := secretsOfVolume(&corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}); names != nil {
		t.Errorf("an empty folder names %v", names)
	}
	user := &corev1.Pod{Spec: corev1.PodSpec{ImagePullSecrets: []corev1.LocalObjectReference{*ref}}}
	if !mounted([]*corev1.Pod{{}, user}, "x") || mounted([]*corev1.Pod{user}, "y") || mounted(nil, "x") {
		t.Error("who uses a secret is not known")
	}
}
