package admission

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func namespace(name string, labels ...string) *corev1.Namespace {
	n := &corev1.Namespace{ObjectMeta: cluster(name), Status: corev1.NamespaceStatus{Phase: corev1.NamespaceActive}}
	n.Labels = map[string]string{}
	for i := 0; i+1 < len(labels); i += 2 {
		n.Labels[labels[i]] = labels[i+1]
	}
	return n
}

func account(name string, change ...func(*corev1.ServiceAccount)) *corev1.ServiceAccount {
	a := &corev1.ServiceAccount{ObjectMeta: named(name)}
	for _, c := range change {
		c(a)
	}
	return a
}

// fullWorld has objects of all kinds that plugins read.
func fullWorld() *world {
	return newWorld(
		namespace("team"),
		account("default", func(a *corev1.ServiceAccount) {
			a.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "registry"}}
		}),
		&corev1.LimitRange{ObjectMeta: named("limits"), Spec: corev1.LimitRangeSpec{Limits: []corev1.LimitRangeItem{{
			Type: corev1.LimitTypeContainer, DefaultRequest: amounts("cpu=100m"), Default: amounts("cpu=200m"),
		}}}},
		&schedulingv1.PriorityClass{ObjectMeta: cluster("usual"), Value: 7, GlobalDefault: true},
		&nodev1.RuntimeClass{ObjectMeta: cluster("sandboxed"), Handler: "runsc",
			Overhead: &nodev1.Overhead{PodFixed: amounts("cpu=250m memory=100Mi")},
			Scheduling: &nodev1.Scheduling{NodeSelector: map[string]string{"sandbox": "yes"}, Tolerations: []corev1.Toleration{
				{Key: "sandbox", Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: ptr(int64(60))},
			}},
		},
		newQuota("everything", "pods=100 count/pods=100 requests.cpu=100", "pods=0 count/pods=0 requests.cpu=0"),
	)
}

func TestNamespaceLifecycle(t *testing.T) {
	leaving := namespace("leaving")
	leaving.Status.Phase = corev1.NamespaceTerminating
	r := &namespaceLifecycle{newWorld(namespace("team"), leaving).env}
	in := func(ns string) *corev1.Pod { return pod(func(p *corev1.Pod) { p.Namespace = ns }) }
	review := creating(in("leaving"))
	review.Resource.Group, review.Resource.Resource = accessReviews.Group, accessReviews.Resource
	clusterScoped := creating(&corev1.Node{ObjectMeta: cluster("n")})
	for name, c := range map[string]struct {
		a    *Attributes
		want string
	}{
		"create":                     {creating(in("team")), ""},
		"create in nothing":          {creating(in("nowhere")), `namespaces "nowhere" not found`},
		"create in leaving":          {creating(in("leaving")), `pods "web" is forbidden: unable to create new content in namespace leaving because it is being terminated`},
		"create below":               {creating(in("leaving"), sub("binding")), "because it is being terminated"},
		"update in leaving":          {updating(in("leaving"), in("leaving")), unhandled},
		"delete in leaving":          {write(Delete, in("leaving")), unhandled},
		"review in leaving":          {review, unhandled},
		"no namespace":               {clusterScoped, unhandled},
		"create namespace":           {creating(namespace("new")), unhandled},
		"delete default":             {write(Delete, namespace("default")), `namespaces "default" is forbidden: this namespace may not be deleted`},
		"delete kube-system":         {write(Delete, namespace("kube-system")), "this namespace may not be deleted"},
		"delete kube-public":         {write(Delete, namespace("kube-public")), "this namespace may not be deleted"},
		"delete kube-node-lease":     {write(Delete, namespace("kube-node-lease")), ""},
		"delete another":             {write(Delete, namespace("team")), ""},
		"create by a generated name": {creating(pod(func(p *corev1.Pod) { p.Namespace, p.Name, p.GenerateName = "leaving", "", "web-" })), `pods "web-" is forbidden`},
	} {
		t.Run(name, func(t *testing.T) { want(t, try(r, c.a), c.want) })
	}
	err := r.Mutate(context.Background(), creating(in("leaving")))
	status, ok := err.(apierrors.APIStatus)
	if !ok || len(status.Status().Details.Causes) != 1 || status.Status().Details.Causes[0].Type != corev1.NamespaceTerminatingCause {
		t.Errorf("no cause in %v", err)
	}
}

func limitRange(items ...corev1.LimitRangeItem) *corev1.LimitRange {
	return &corev1.LimitRange{ObjectMeta: named("limits"), Spec: corev1.LimitRangeSpec{Limits: items}}
}

func TestLimitRangerDefaults(t *testing.T) {
	r := &limitRanger{newWorld(limitRange(corev1.LimitRangeItem{
		Type: corev1.LimitTypeContainer, DefaultRequest: amounts("cpu=100m memory=1Mi"), Default: amounts("cpu=200m"),
	}, corev1.LimitRangeItem{Type: corev1.LimitTypePod, Default: amounts("cpu=9")})).env}
	p := pod(everyKind, asks(0, "memory=2Mi", ""))
	want(t, try(r, creating(p)), "")
	same(t, p.Spec.Containers[0].Resources, corev1.ResourceRequirements{Requests: amounts("cpu=100m memory=2Mi"), Limits: amounts("cpu=200m")})
	same(t, p.Spec.InitContainers[0].Resources, corev1.ResourceRequirements{Requests: amounts("cpu=100m memory=1Mi"), Limits: amounts("cpu=200m")})
	same(t, p.Spec.EphemeralContainers[0].Resources, corev1.ResourceRequirements{})
	same(t, p.Annotations, map[string]string{limitRangerAnnotation: "LimitRanger plugin set: cpu request for container main; " +
		"cpu limit for container main; cpu, memory request for init container prepare; cpu limit for init container prepare"})

	elsewhere := pod(func(p *corev1.Pod) { p.Namespace = "other" })
	want(t, try(r, creating(elsewhere)), "")
	if len(elsewhere.Annotations) > 0 || elsewhere.Spec.Containers[0].Resources.Requests != nil {
		t.Errorf("a limit range reaches into another namespace: %+v", elsewhere)
	}
}

func TestLimitRangerValidates(t *testing.T) {
	item := func(of corev1.LimitType, low, high, ratio string) corev1.LimitRangeItem {
		return corev1.LimitRangeItem{Type: of, Min: amounts(low), Max: amounts(high), MaxLimitRequestRatio: amounts(ratio)}
	}
	claim := func(size string) *corev1.PersistentVolumeClaim {
		return &corev1.PersistentVolumeClaim{ObjectMeta: named("data"), Spec: corev1.PersistentVolumeClaimSpec{Resources: corev1.VolumeResourceRequirements{Requests: amounts(size)}}}
	}
	leaving := pod()
	leaving.DeletionTimestamp = &metav1.Time{Time: time.Now()}
	initAsks := func(requests, limits string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Spec.InitContainers = []corev1.Container{{Name: "i", Resources: corev1.ResourceRequirements{Requests: amounts(requests), Limits: amounts(limits)}}}
		}
	}
	containerMax, podMax := item(corev1.LimitTypeContainer, "", "cpu=1", ""), item(corev1.LimitTypePod, "", "cpu=1", "")
	for name, c := range map[string]struct {
		limits corev1.LimitRangeItem
		a      *Attributes
		want   string
	}{
		"enough":                        {item(corev1.LimitTypeContainer, "cpu=100m", "cpu=1", ""), creating(pod(asks(0, "cpu=500m", "cpu=1"))), ""},
		"too little asked":              {item(corev1.LimitTypeContainer, "cpu=100m", "", ""), creating(pod(asks(0, "cpu=50m", ""))), `pods "web" is forbidden: minimum cpu usage per Container is 100m, but request is 50m`},
		"nothing asked":                 {item(corev1.LimitTypeContainer, "cpu=100m", "", ""), creating(pod()), "minimum cpu usage per Container is 100m.  No request is specified"},
		"limit too low":                 {item(corev1.LimitTypeContainer, "cpu=100m", "", ""), creating(pod(asks(0, "cpu=100m", "cpu=50m"))), "but limit is 50m"},
		"too much":                      {containerMax, creating(pod(asks(0, "", "cpu=2"))), "maximum cpu usage per Container is 1, but limit is 2"},
		"no limit":                      {containerMax, creating(pod(asks(0, "cpu=1", ""))), "maximum cpu usage per Container is 1.  No limit is specified"},
		"request above":                 {containerMax, creating(pod(asks(0, "cpu=2", "cpu=1"))), "maximum cpu usage per Container is 1, but request is 2"},
		"too much in an init container": {containerMax, creating(pod(asks(0, "", "cpu=1"), initAsks("", "cpu=2"))), "but limit is 2"},
		"ratio":                         {item(corev1.LimitTypeContainer, "", "", "cpu=2"), creating(pod(asks(0, "cpu=1", "cpu=3"))), "cpu max limit to request ratio per Container is 2, but provided ratio is 3.000000"},
		"ratio holds":                   {item(corev1.LimitTypeContainer, "", "", "cpu=1500m"), creating(pod(asks(0, "cpu=2", "cpu=3"))), ""},
		"ratio without request":         {item(corev1.LimitTypeContainer, "", "", "cpu=2"), creating(pod(asks(0, "", "cpu=3"))), "but no request is specified or request is 0"},
		"ratio without limit":           {item(corev1.LimitTypeContainer, "", "", "cpu=2"), creating(pod(asks(0, "cpu=1", ""))), "but no limit is specified or limit is 0"},
		"pod as a whole":                {podMax, creating(pod(asks(0, "cpu=600m", "cpu=600m"), initAsks("cpu=2", "cpu=2"))), "maximum cpu usage per Pod is 1, but limit is 2"},
		"pod says it for all": {podMax, creating(pod(func(p *corev1.Pod) {
			p.Spec.Resources = &corev1.ResourceRequirements{Requests: amounts("cpu=1"), Limits: amounts("cpu=3")}
		})), "but limit is 3"},
		"claim too large":       {item(corev1.LimitTypePersistentVolumeClaim, "", "storage=1Gi", ""), creating(claim("storage=2Gi")), `persistentvolumeclaims "data" is forbidden: maximum storage usage per PersistentVolumeClaim is 1Gi, but request is 2Gi`},
		"claim too small":       {item(corev1.LimitTypePersistentVolumeClaim, "storage=1Gi", "", ""), creating(claim("storage=1Mi")), "minimum storage usage per PersistentVolumeClaim is 1Gi, but request is 1Mi"},
		"claim grows too large": {item(corev1.LimitTypePersistentVolumeClaim, "", "storage=1Gi", ""), updating(claim("storage=1Gi"), claim("storage=2Gi")), "but request is 2Gi"},
		"claim status":          {item(corev1.LimitTypePersistentVolumeClaim, "", "storage=1Gi", ""), updating(claim("storage=1Gi"), claim("storage=2Gi"), sub("status")), unhandled},
		"pod update":            {containerMax, updating(pod(), pod(asks(0, "", "cpu=2"))), unhandled},
		"pod resize":            {containerMax, updating(pod(), pod(asks(0, "", "cpu=2")), sub("resize")), "but limit is 2"},
		"pod leaves":            {containerMax, updating(leaving, pod(asks(0, "", "cpu=2")), sub("resize")), ""},
		"two at once":           {item(corev1.LimitTypeContainer, "cpu=1 memory=1Gi", "", ""), creating(pod(asks(0, "cpu=1m memory=1Mi", ""))), "[minimum cpu usage per Container is 1, but request is 1m, minimum memory usage per Container is 1Gi, but request is 1Mi]"},
		"beyond thousandths":    {item(corev1.LimitTypeContainer, "", "memory=9E", ""), creating(pod(asks(0, "", "memory=8E"))), ""},
	} {
		t.Run(name, func(t *testing.T) { want(t, try(&limitRanger{newWorld(limitRange(c.limits)).env}, c.a), c.want) })
	}
}

func TestServiceAccountDefaults(t *testing.T) {
	w := newWorld(account("default", func(a *corev1.ServiceAccount) {
		a.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "registry"}}
	}), account("quiet", func(a *corev1.ServiceAccount) { a.AutomountServiceAccountToken = ptr(false) }))
	r := &serviceAccount{w.env}

	p := pod(func(p *corev1.Pod) {
		p.Spec.InitContainers = []corev1.Container{{Name: "prepare"}}
		p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: "own", VolumeMounts: []corev1.VolumeMount{{Name: "mine", MountPath: tokenMountPath}}})
	})
	want(t, try(r, creating(p)), "")
	if p.Spec.ServiceAccountName != "default" || p.Spec.DeprecatedServiceAccount != "default" {
		t.Errorf("account %q", p.Spec.ServiceAccountName)
	}
	same(t, p.Spec.ImagePullSecrets, []corev1.LocalObjectReference{{Name: "registry"}})
	name := p.Spec.Volumes[0].Name
	if !strings.HasPrefix(name, "kube-api-access-") || len(name) != len("kube-api-access-")+5 {
		t.Errorf("volume %q", name)
	}
	mount := []corev1.VolumeMount{{Name: name, ReadOnly: true, MountPath: "/var/run/secrets/kubernetes.io/serviceaccount"}}
	same(t, p.Spec.Containers[0].VolumeMounts, mount)
	same(t, p.Spec.InitContainers[0].VolumeMounts, mount)
	if len(p.Spec.Containers[1].VolumeMounts) != 1 || p.Spec.Containers[1].VolumeMounts[0].Name != "mine" {
		t.Errorf("mounts %v", p.Spec.Containers[1].VolumeMounts)
	}
	same(t, p.Spec.Volumes[0].Projected, map[string]any{"defaultMode": 420, "sources": []any{
		map[string]any{"serviceAccountToken": map[string]any{"expirationSeconds": 3607, "path": "token"}},
		map[string]any{"configMap": map[string]any{"items": []any{map[string]any{"key": "ca.crt", "path": "ca.crt"}}, "name": "kube-root-ca.crt"}},
		map[string]any{"downwardAPI": map[string]any{"items": []any{map[string]any{
			"fieldRef": map[string]any{"apiVersion": "v1", "fieldPath": "metadata.namespace"}, "path": "namespace",
		}}}},
	}})

	for text, change := range map[string]func(*corev1.Pod){
		"the account does not want it": func(p *corev1.Pod) { p.Spec.ServiceAccountName = "quiet" },
		"the pod does not want it":     func(p *corev1.Pod) { p.Spec.AutomountServiceAccountToken = ptr(false) },
		"a volume is there": func(p *corev1.Pod) {
			p.Spec.Volumes = []corev1.Volume{{Name: "kube-api-access-mine"}}
			p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "x", MountPath: tokenMountPath}}
		},
		"it is a mirror": mirror,
	} {
		p := pod(change)
		had := len(p.Spec.Volumes)
		want(t, try(r, creating(p)), "")
		if len(p.Spec.Volumes) != had || strings.Contains(text, "mirror") != (p.Spec.ServiceAccountName == "") {
			t.Errorf("%s: %+v", text, p.Spec)
		}
	}
	p = pod(func(p *corev1.Pod) {
		p.Spec.ServiceAccountName, p.Spec.AutomountServiceAccountToken = "quiet", ptr(true)
		p.Spec.Volumes = []corev1.Volume{{Name: "kube-api-access-mine"}}
		p.Spec.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "own"}}
	})
	want(t, try(r, creating(p)), "")
	if p.Spec.Containers[0].VolumeMounts[0].Name != "kube-api-access-mine" || len(p.Spec.Volumes) != 1 || p.Spec.ImagePullSecrets[0].Name != "own" {
		t.Errorf("got %+v", p.Spec)
	}
}

// TestServiceAccountSecrets covers CVE-2023-2728 and CVE-2024-3177: every kind of container and every kind of reference to a secret.
func TestServiceAccountSecrets(t *testing.T) {
	w := newWorld(account("strict", func(a *corev1.ServiceAccount) {
		a.Annotations = map[string]string{enforceMountableSecrets: "true"}
		a.Secrets = []corev1.ObjectReference{{Name: "good"}}
		a.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "pull"}}
	}))
	r := &serviceAccount{w.env}
	env := func(secret string) []corev1.EnvVar {
		return []corev1.EnvVar{{Name: "KEY", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{LocalObjectReference: corev1.LocalObjectReference{Name: secret}}}}}
	}
	from := func(secret string) []corev1.EnvFromSource {
		return []corev1.EnvFromSource{{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: secret}}}}
	}
	strict := func(change func(*corev1.Pod)) *corev1.Pod {
		return pod(func(p *corev1.Pod) { p.Spec.ServiceAccountName = "strict" }, change)
	}
	debug := func(env []corev1.EnvVar, from []corev1.EnvFromSource) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "debug", Env: env, EnvFrom: from}}}
		}
	}
	plain := strict(func(*corev1.Pod) {})
	for name, c := range map[string]struct {
		a    *Attributes
		want string
	}{
		"listed": {creating(strict(func(p *corev1.Pod) { p.Spec.Containers[0].Env = env("good") })), ""},
		"container env": {creating(strict(func(p *corev1.Pod) { p.Spec.Containers[0].Env = env("bad") })),
			`pods "web" is forbidden: container main with envVar KEY referencing secret.secretName="bad" is not allowed because service account strict does not reference that secret`},
		"container envFrom": {creating(strict(func(p *corev1.Pod) { p.Spec.Containers[0].EnvFrom = from("bad") })), `container main with envFrom referencing secret.secretName="bad"`},
		"init env": {creating(strict(func(p *corev1.Pod) {
			p.Spec.InitContainers = []corev1.Container{{Name: "i", Env: env("bad")}}
		})), `init container i with envVar KEY`},
		"init envFrom": {creating(strict(func(p *corev1.Pod) {
			p.Spec.InitContainers = []corev1.Container{{Name: "i", EnvFrom: from("bad")}}
		})), `init container i with envFrom`},
		"ephemeral env":     {updating(plain, strict(debug(env("bad"), nil)), sub("ephemeralcontainers")), `ephemeral container debug with envVar KEY`},
		"ephemeral envFrom": {updating(plain, strict(debug(nil, from("bad"))), sub("ephemeralcontainers")), `ephemeral container debug with envFrom`},
		"ephemeral listed":  {updating(plain, strict(debug(env("good"), from("good"))), sub("ephemeralcontainers")), ""},
		"volume": {creating(strict(func(p *corev1.Pod) {
			p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "bad"}}}}
		})), `volume with secret.secretName="bad" is not allowed`},
		"pull secret": {creating(strict(func(p *corev1.Pod) { p.Spec.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "bad"}} })),
			`imagePullSecrets[0].name="bad" is not allowed because service account strict does not reference that imagePullSecret`},
		"unknown account":    {creating(pod(func(p *corev1.Pod) { p.Spec.ServiceAccountName = "who" })), `error looking up service account team/who: serviceaccount "who" not found`},
		"ordinary update":    {updating(plain, strict(func(p *corev1.Pod) { p.Spec.Containers[0].Env = env("bad") })), unhandled},
		"status":             {updating(plain, plain, sub("status")), unhandled},
		"mirror and account": {creating(strict(mirror)), "a mirror pod may not reference service accounts"},
		"mirror and secret": {creating(pod(mirror, func(p *corev1.Pod) {
			p.Spec.InitContainers = []corev1.Container{{Name: "i", EnvFrom: from("any")}}
		})), "a mirror pod may not reference secrets"},
		"mirror and csi secret": {creating(pod(mirror, func(p *corev1.Pod) {
			p.Spec.Volumes = []corev1.Volume{{VolumeSource: corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{NodePublishSecretRef: &corev1.LocalObjectReference{Name: "s"}}}}}
		})), "a mirror pod may not reference secrets"},
		"mirror and token": {creating(pod(mirror, func(p *corev1.Pod) {
			p.Spec.Volumes = []corev1.Volume{{VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
				Sources: []corev1.VolumeProjection{{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{}}}}}}}
		})), "a mirror pod may not use ServiceAccountToken volume projections"},
	} {
		t.Run(name, func(t *testing.T) { want(t, try(r, c.a), c.want) })
	}
}

// TestWaitForDefaultAccount: a pod in a new namespace waits for the account that a controller creates.
func TestWaitForDefaultAccount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		go func() {
			time.Sleep(350 * time.Millisecond)
			w.mu.Lock()
			w.put(account("default"))
			w.mu.Unlock()
		}()
		want(t, try(&serviceAccount{w.env}, creating(pod())), "")
	})
	synctest.Test(t, func(t *testing.T) {
		want(t, try(&serviceAccount{newWorld().env}, creating(pod())), `error looking up service account team/default: serviceaccount "default" not found`)
	})
}

func TestPriority(t *testing.T) {
	never := corev1.PreemptNever
	class := func(name string, value int32, isDefault bool) *schedulingv1.PriorityClass {
		return &schedulingv1.PriorityClass{ObjectMeta: cluster(name), Value: value, GlobalDefault: isDefault}
	}
	polite := class("polite", 5, false)
	polite.PreemptionPolicy = &never
	bare, full := newWorld(class("high", 1000, false), polite), newWorld(class("a", 20, true), class("b", 10, true))
	for name, c := range map[string]struct {
		w        *world
		change   func(*corev1.Pod)
		want     string
		class    string
		priority int32
		policy   string
	}{
		"nothing":            {bare, func(*corev1.Pod) {}, "", "", 0, "PreemptLowerPriority"},
		"default, the lower": {full, func(*corev1.Pod) {}, "", "b", 10, ""},
		"named":              {bare, func(p *corev1.Pod) { p.Spec.PriorityClassName = "high" }, "", "high", 1000, ""},
		"polite":             {bare, func(p *corev1.Pod) { p.Spec.PriorityClassName = "polite" }, "", "polite", 5, "Never"},
		"the same number":    {bare, func(p *corev1.Pod) { p.Spec.PriorityClassName, p.Spec.Priority = "high", ptr(int32(1000)) }, "", "high", 1000, ""},
		"unknown":            {bare, func(p *corev1.Pod) { p.Spec.PriorityClassName = "x" }, `pods "web" is forbidden: no PriorityClass with name x was found`, "", 0, ""},
		"own number": {bare, func(p *corev1.Pod) { p.Spec.Priority = ptr(int32(9)) },
			"the integer value of priority (9) must not be provided in pod spec; priority admission controller computed 0 from the given PriorityClass name", "", 0, ""},
		"own policy": {bare, func(p *corev1.Pod) { p.Spec.PreemptionPolicy = &never },
			"the string value of PreemptionPolicy (Never) must not be provided in pod spec; priority admission controller computed PreemptLowerPriority", "", 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			p := pod(c.change)
			want(t, try(&priority{c.w.env}, creating(p)), c.want)
			if c.want != "" {
				return
			}
			policy := ""
			if p.Spec.PreemptionPolicy != nil {
				policy = string(*p.Spec.PreemptionPolicy)
			}
			if p.Spec.PriorityClassName != c.class || *p.Spec.Priority != c.priority || policy != c.policy {
				t.Errorf("got %q %d %q", p.Spec.PriorityClassName, *p.Spec.Priority, policy)
			}
		})
	}
	p := pod()
	want(t, try(&priority{bare.env}, updating(pod(func(p *corev1.Pod) { p.Spec.Priority, p.Spec.PreemptionPolicy = ptr(int32(3)), &never }), p)), "")
	if *p.Spec.Priority != 3 || *p.Spec.PreemptionPolicy != never {
		t.Error("an update loses the priority")
	}
	r := &priority{newWorld(class("a", 20, true)).env}
	want(t, try(r, creating(class("c", 1, true))), `priorityclasses.scheduling.k8s.io "c" is forbidden: PriorityClass a is already marked as default. Only one default can exist`)
	want(t, try(r, updating(class("c", 1, false), class("c", 1, true))), "already marked as default")
	want(t, try(r, updating(class("a", 20, true), class("a", 20, true))), "")
	want(t, try(r, creating(class("c", 1, false))), "")
	want(t, try(r, creating(pod(), sub("binding"))), unhandled)
}

func TestTolerationSecondsAreSet(t *testing.T) {
	zero := int64(0)
	for _, o := range []struct {
		options               Options
		notReady, unreachable int64
	}{{Options{}, 300, 300}, {Options{DefaultNotReadyTolerationSeconds: &zero}, 0, 300}} {
		for _, e := range all {
			if e.name != "DefaultTolerationSeconds" {
				continue
			}
			r, err := e.make(&o.options, &config{})
			if err != nil || *r.(*defaultTolerationSeconds) != (defaultTolerationSeconds{o.notReady, o.unreachable}) {
				t.Errorf("%+v, %v", r, err)
			}
		}
	}
}

func TestDefaultTolerationSeconds(t *testing.T) {
	r := &defaultTolerationSeconds{300, 400}
	tolerate := func(key, effect string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Spec.Tolerations = append(p.Spec.Tolerations, corev1.Toleration{Key: key, Effect: corev1.TaintEffect(effect), Operator: corev1.TolerationOpExists})
		}
	}
	keys := func(p *corev1.Pod) (s []string) {
		for _, t := range p.Spec.Tolerations {
			s = append(s, t.Key)
		}
		return s
	}
	ready, reach := corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable
	for name, c := range map[string]struct {
		change func(*corev1.Pod)
		want   string
	}{
		"none":               {func(*corev1.Pod) {}, ready + " " + reach},
		"one":                {tolerate(ready, "NoExecute"), ready + " " + reach},
		"any effect":         {tolerate(reach, ""), reach + " " + ready},
		"other effect":       {tolerate(ready, "NoSchedule"), ready + " " + ready + " " + reach},
		"everything":         {tolerate("", ""), ""},
		"everything at once": {tolerate("", "NoExecute"), ""},
	} {
		t.Run(name, func(t *testing.T) {
			p := pod(c.change)
			want(t, try(r, creating(p)), "")
			if got := strings.Join(keys(p), " "); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
	p := pod()
	want(t, try(r, updating(pod(), p)), "")
	if *p.Spec.Tolerations[0].TolerationSeconds != 300 || *p.Spec.Tolerations[1].TolerationSeconds != 400 {
		t.Errorf("got %+v", p.Spec.Tolerations)
	}
	want(t, try(r, updating(pod(), pod(), sub("status"))), unhandled)
	want(t, try(r, updating(pod(), pod(), sub("ephemeralcontainers"))), unhandled)
}

func TestRuntimeClass(t *testing.T) {
	r := &runtimeClass{fullWorld().env}
	class := func(change ...func(*corev1.Pod)) *corev1.Pod {
		return pod(append(change, func(p *corev1.Pod) { p.Spec.RuntimeClassName = ptr("sandboxed") })...)
	}
	p := class(func(p *corev1.Pod) {
		p.Spec.NodeSelector = map[string]string{"a": "b"}
		p.Spec.Tolerations = []corev1.Toleration{{Key: "sandbox", Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: ptr(int64(10))}, {Key: "x", Operator: corev1.TolerationOpEqual, Value: "y"}}
	})
	want(t, try(r, creating(p)), "")
	same(t, p.Spec.Overhead, amounts("cpu=250m memory=100Mi"))
	same(t, p.Spec.NodeSelector, map[string]string{"a": "b", "sandbox": "yes"})
	if len(p.Spec.Tolerations) != 2 || p.Spec.Tolerations[0].Key != "x" || *p.Spec.Tolerations[1].TolerationSeconds != 60 {
		t.Errorf("tolerations %+v", p.Spec.Tolerations)
	}
	for name, c := range map[string]struct {
		a    *Attributes
		want string
	}{
		"unknown":        {creating(pod(func(p *corev1.Pod) { p.Spec.RuntimeClassName = ptr("x") })), `pods "web" is forbidden: pod rejected: RuntimeClass "x" not found`},
		"same overhead":  {creating(class(func(p *corev1.Pod) { p.Spec.Overhead = amounts("cpu=250m memory=100Mi") })), ""},
		"other overhead": {creating(class(func(p *corev1.Pod) { p.Spec.Overhead = amounts("cpu=1") })), "pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead"},
		"only overhead":  {creating(pod(func(p *corev1.Pod) { p.Spec.Overhead = amounts("cpu=1") })), "pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead"},
		"other selector": {creating(class(func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"sandbox": "no"} })), "conflict: runtimeClass.scheduling.nodeSelector[sandbox] = yes; pod.spec.nodeSelector[sandbox] = no"},
		"no class":       {creating(pod()), ""},
		"update":         {updating(pod(), pod()), unhandled},
		"subresource":    {creating(pod(), sub("binding")), unhandled},
	} {
		t.Run(name, func(t *testing.T) { want(t, try(r, c.a), c.want) })
	}
}

func TestPodTopologyLabels(t *testing.T) {
	node := &corev1.Node{ObjectMeta: cluster("n1")}
	node.Labels = map[string]string{corev1.LabelTopologyZone: "z", corev1.LabelTopologyRegion: "r", corev1.LabelHostname: "h"}
	r := &podTopologyLabels{newWorld(node).env}
	wanted := map[string]string{corev1.LabelTopologyZone: "z", corev1.LabelTopologyRegion: "r"}
	p := pod(on("n1"), func(p *corev1.Pod) { p.Labels = map[string]string{corev1.LabelTopologyZone: "mine"} })
	want(t, try(r, creating(p)), "")
	same(t, p.Labels, wanted)
	binding := &corev1.Binding{Target: corev1.ObjectReference{Kind: "Node", Name: "n1"}}
	want(t, try(r, creating(pod(), other(pods, "binding", binding))), "")
	same(t, binding.Labels, wanted)
	for _, p := range []*corev1.Pod{pod(), pod(on("n2"))} {
		want(t, try(r, creating(p)), "")
		if p.Labels != nil {
			t.Errorf("labels %v", p.Labels)
		}
	}
	want(t, try(r, updating(pod(), pod(on("n1")))), unhandled)
}

func TestPodResizeValidator(t *testing.T) {
	node, windows := &corev1.Node{ObjectMeta: cluster("n1")}, &corev1.Node{ObjectMeta: cluster("w1")}
	node.Status.Allocatable = amounts("cpu=2 memory=1Gi")
	windows.Labels = map[string]string{corev1.LabelOSStable: "windows"}
	r := &podResizeValidator{newWorld(node, windows).env}
	changed := func(p *corev1.Pod) { p.Generation = 2 }
	for name, c := range map[string]struct {
		a    *Attributes
		want string
	}{
		"fits":      {updating(pod(), pod(on("n1"), changed, asks(0, "cpu=2", "")), sub("resize")), ""},
		"too large": {updating(pod(), pod(on("n1"), changed, asks(0, "cpu=3 memory=2Gi", "")), sub("resize")), `node didn't have enough allocatable resources: cpu, requested: 3000, allocatable: 2000; memory, requested: 2147483648, allocatable: 1073741824`},
		"windows":   {updating(pod(), pod(on("w1"), changed), sub("resize")), `pod resize is only supported on linux nodes, node "w1" is "windows"`},
		"no node":   {updating(pod(), pod(on("x"), changed), sub("resize")), `node "x" not found`},
		"unbound":   {updating(pod(), pod(changed, asks(0, "cpu=3", "")), sub("resize")), ""},
		"unchanged": {updating(pod(), pod(on("n1"), asks(0, "cpu=3", "")), sub("resize")), ""},
		"update":    {updating(pod(), pod(on("n1"), changed, asks(0, "cpu=3", ""))), unhandled},
	} {
		t.Run(name, func(t *testing.T) { want(t, try(r, c.a), c.want) })
	}
}

func TestAlwaysPullImages(t *testing.T) {
	r := alwaysPullImages{}
	p := pod(everyKind, func(p *corev1.Pod) {
		p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{Image: &corev1.ImageVolumeSource{Reference: "x"}}}}
	})
	want(t, try(r, creating(p)), "")
	for _, policy := range []corev1.PullPolicy{p.Spec.InitContainers[0].ImagePullPolicy, p.Spec.Containers[0].ImagePullPolicy,
		p.Spec.EphemeralContainers[0].ImagePullPolicy, p.Spec.Volumes[0].Image.PullPolicy} {
		if policy != corev1.PullAlways {
			t.Errorf("a policy is %q", policy)
		}
	}
	debugged := pod(everyKind)
	want(t, try(r, updating(pod(), debugged, sub("ephemeralcontainers"))), "")
	if debugged.Spec.EphemeralContainers[0].ImagePullPolicy != corev1.PullAlways || debugged.Spec.Containers[0].ImagePullPolicy != "" {
		t.Errorf("got %+v", debugged.Spec)
	}
	want(t, try(r, updating(pod(), pod())), unhandled)
	if err := r.Validate(context.Background(), creating(pod(everyKind))); err == nil || strings.Count(err.Error(), "imagePullPolicy") != 3 {
		t.Errorf("got %v", err)
	}
}

func TestExtendedResourceToleration(t *testing.T) {
	r := extendedResourceToleration{}
	p := pod(everyKind, asks(0, "cpu=1 example.com/gpu=1", ""), func(p *corev1.Pod) {
		p.Spec.InitContainers[0].Resources.Requests = amounts("example.com/fpga=1 kubernetes.io/batman=1")
	})
	want(t, try(r, creating(p)), "")
	want(t, try(r, updating(p, p)), "")
	if len(p.Spec.Tolerations) != 2 || p.Spec.Tolerations[0].Key != "example.com/fpga" || p.Spec.Tolerations[1].Key != "example.com/gpu" {
		t.Errorf("got %+v", p.Spec.Tolerations)
	}
}

func TestPodNodeSelector(t *testing.T) {
	ns := namespace("team")
	ns.Annotations = map[string]string{nodeSelectorAnnotation: "zone=a"}
	r := &podNodeSelector{newWorld(ns, namespace("plain")).env, map[string]string{clusterDefaultSelector: "pool=any", "team": "zone=a,pool=x"}}
	in := func(ns string, selector map[string]string) *corev1.Pod {
		return pod(func(p *corev1.Pod) { p.Namespace, p.Spec.NodeSelector = ns, selector })
	}
	p := in("team", map[string]string{"pool": "x"})
	want(t, try(r, creating(p)), "")
	same(t, p.Spec.NodeSelector, map[string]string{"zone": "a", "pool": "x"})
	p = in("plain", nil)
	want(t, try(r, creating(p)), "")
	same(t, p.Spec.NodeSelector, map[string]string{"pool": "any"})
	want(t, try(r, creating(in("team", map[string]string{"zone": "b"}))), "pod node label selector conflicts with its namespace node label selector")
	want(t, try(r, creating(in("team", map[string]string{"disk": "fast"}))), "pod node label selector labels conflict with its namespace whitelist")
	want(t, try(r, updating(p, p)), unhandled)
}

func TestNodeDeclaredFeatures(t *testing.T) {
	node := &corev1.Node{ObjectMeta: cluster("n1")}
	r, err := newNodeDeclaredFeatureValidator(newWorld(node).env)
	if err != nil {
		t.Fatal(err)
	}
	changed := func(p *corev1.Pod) { p.Generation = 2 }
	want(t, try(r, updating(pod(on("n1")), pod(on("n1"), changed, asks(0, "cpu=1", "")))), "")
	want(t, try(r, creating(pod(on("n1")))), unhandled)
	want(t, try(r, updating(pod(), pod(), sub("status"))), unhandled)
}
