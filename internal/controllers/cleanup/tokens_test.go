package cleanup

import (
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"skiff/internal/controller"
	"skiff/test/world"
)

func TestLegacyTokens(t *testing.T) {
	const life = 100 * day
	before := func(days int) string { return noon.Add(-time.Duration(days) * day).Format(time.DateOnly) }
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{UID: "1"}, Secrets: []corev1.ObjectReference{{Name: "other"}, {Name: "token"}}}
	bare := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{UID: "1"}}
	used := func(at string) map[string]string { return map[string]string{lastUsedLabel: at} }
	invalid := func(since string) map[string]string { return map[string]string{invalidSinceLabel: since} }
	both := func(at, since string) map[string]string {
		return map[string]string{lastUsedLabel: at, invalidSinceLabel: since}
	}
	for _, test := range []struct {
		what    string
		age     time.Duration
		labels  map[string]string
		change  func(*corev1.Secret)
		account *corev1.ServiceAccount
		want    tokenAction
	}{
		{"old and never used", 200 * day, nil, nil, account, invalidateToken},
		{"young", 50 * day, nil, nil, account, keepToken},
		{"exactly as old as its life", life, nil, nil, account, keepToken},
		{"a second older", life + time.Second, nil, nil, account, invalidateToken},
		{"used today", 200 * day, used(before(0)), nil, account, keepToken},
		{"used lately", 200 * day, used(before(10)), nil, account, keepToken},
		{"used on the last day that counts", 200 * day, used(before(100)), nil, account, keepToken},
		{"used the day before", 200 * day, used(before(101)), nil, account, invalidateToken},
		{"used at a time nobody can read", 200 * day, used("yesterday"), nil, account, keepToken},
		{"used at no time", 200 * day, used(""), nil, account, keepToken},
		{"invalid since lately", 200 * day, invalid(before(10)), nil, account, keepToken},
		{"invalid since the last day that counts", 300 * day, invalid(before(100)), nil, account, keepToken},
		{"invalid since the day before", 300 * day, invalid(before(101)), nil, account, deleteToken},
		{"invalid since a time nobody can read", 300 * day, invalid("long"), nil, account, invalidateToken},
		{"invalid since no time", 300 * day, invalid(""), nil, account, invalidateToken},
		{"invalid for long, used long ago", 300 * day, both(before(200), before(150)), nil, account, deleteToken},
		{"invalid for long, but used since", 300 * day, both(before(1), before(150)), nil, account, keepToken},
		{"made by hand", 200 * day, nil, nil, bare, keepToken},
		{"made by hand, invalid for long", 300 * day, invalid(before(150)), nil, bare, keepToken},
		{"of an account that is gone", 200 * day, nil, nil, nil, keepToken},
		{"of a former account", 200 * day, nil, func(s *corev1.Secret) { s.Annotations[corev1.ServiceAccountUIDKey] = "0" }, account, keepToken},
		{"of an account without its uid", 200 * day, nil, func(s *corev1.Secret) { delete(s.Annotations, corev1.ServiceAccountUIDKey) }, account, invalidateToken},
		{"being deleted", 200 * day, nil, func(s *corev1.Secret) { s.DeletionTimestamp = new(metav1.NewTime(noon)) }, account, keepToken},
		{"another secret", 200 * day, nil, func(s *corev1.Secret) { s.Type = corev1.SecretTypeOpaque }, account, keepToken},
	} {
		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "token", Labels: test.labels, Annotations: map[string]string{corev1.ServiceAccountUIDKey: "1"},
			CreationTimestamp: metav1.NewTime(noon.Add(-test.age))}, Type: corev1.SecretTypeServiceAccountToken}
		if test.change != nil {
			test.change(secret)
		}
		if got := (tokenView{secret: secret, account: test.account, unusedPeriod: life, now: noon}).action(); got != test.want {
			t.Errorf("%s: %v, want %v", test.what, got, test.want)
		}
	}
}

func TestTheUseOfTokensMustHaveBeenTracked(t *testing.T) {
	const life = 100 * day
	at := func(days int) string { return noon.Add(-time.Duration(days) * day).Format(time.DateOnly) }
	for _, test := range []struct {
		what     string
		tracking *corev1.ConfigMap
		want     bool
	}{
		{"not tracked", nil, false},
		{"tracked without a day", &corev1.ConfigMap{}, false},
		{"tracked since a day nobody can read", &corev1.ConfigMap{Data: map[string]string{"since": "x"}}, false},
		{"tracked for longer", &corev1.ConfigMap{Data: map[string]string{"since": at(102)}}, true},
		// The day it began counts as over at its end, and it is noon.
		{"tracked for a day and its life", &corev1.ConfigMap{Data: map[string]string{"since": at(101)}}, true},
		{"tracked for its life", &corev1.ConfigMap{Data: map[string]string{"since": at(100)}}, false},
		{"tracked since tomorrow", &corev1.ConfigMap{Data: map[string]string{"since": at(-1)}}, false},
	} {
		if got := trackedFor(test.tracking, life, noon); got != test.want {
			t.Errorf("%s: %v", test.what, got)
		}
	}
	midnight := time.Date(2026, 6, 15, 0, 0, 0, 0, time.UTC)
	tracking := &corev1.ConfigMap{Data: map[string]string{"since": "2026-06-04"}}
	if !trackedFor(tracking, 10*day, midnight) || trackedFor(tracking, 10*day, midnight.Add(-1)) {
		t.Error("the time is up at midnight, neither before nor after")
	}
}

func TestWhatBecomesOfTokens(t *testing.T) {
	v := tokenView{secret: &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "token", UID: "7", ResourceVersion: "42"}}, now: noon}
	if plan := v.plan(keepToken); !plan.IsEmpty() {
		t.Errorf("what is kept: %+v", plan)
	}
	if w := v.plan(invalidateToken).Steps[0].Writes[0]; w.Verb != controller.Patch || string(w.Patch) != `{"metadata":{"labels":{"kubernetes.io/legacy-token-invalid-since":"2026-06-15"},"uid":"7"}}` {
		t.Errorf("what becomes invalid: %s %s", w.Verb, w.Patch)
	}
	w := v.plan(deleteToken).Steps[0].Writes[0]
	if w.Verb != controller.Delete || *w.DeleteOptions.Preconditions.ResourceVersion != "42" || *w.DeleteOptions.Preconditions.UID != "7" || !slices.Contains(w.Ignore, metav1.StatusReasonConflict) {
		t.Errorf("what goes: %+v", w)
	}
}

func TestSecretsOfPods(t *testing.T) {
	ref := &corev1.LocalObjectReference{Name: "x"}
	env := []corev1.EnvVar{{Name: "plain"}, {ValueFrom: &corev1.EnvVarSource{}}, {ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{LocalObjectReference: *ref}}}}
	from := []corev1.EnvFromSource{{ConfigMapRef: &corev1.ConfigMapEnvSource{}}, {SecretRef: &corev1.SecretEnvSource{LocalObjectReference: *ref}}}
	volume := func(source corev1.VolumeSource) corev1.PodSpec {
		return corev1.PodSpec{Volumes: []corev1.Volume{{VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}, {VolumeSource: source}}}
	}
	for _, test := range []struct {
		what string
		pod  corev1.PodSpec
		want string
	}{
		{"nothing", corev1.PodSpec{}, "[]"},
		{"to pull images", corev1.PodSpec{ImagePullSecrets: []corev1.LocalObjectReference{*ref, {Name: "y"}}}, "[x y]"},
		{"a container's variables", corev1.PodSpec{Containers: []corev1.Container{{Env: env}}}, "[x]"},
		{"a container's environment", corev1.PodSpec{Containers: []corev1.Container{{}, {EnvFrom: from}}}, "[x]"},
		{"before containers", corev1.PodSpec{InitContainers: []corev1.Container{{Env: env, EnvFrom: from}}}, "[x x]"},
		{"to debug", corev1.PodSpec{EphemeralContainers: []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Env: env, EnvFrom: from}}}}, "[x x]"},
		{"a volume", volume(corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "x"}}), "[x]"},
		{"a projected volume", volume(corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{{}, {Secret: &corev1.SecretProjection{LocalObjectReference: *ref}}}}}), "[x]"},
		{"a projected volume without", volume(corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{}}), "[]"},
		{"a CSI volume", volume(corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{NodePublishSecretRef: ref}}), "[x]"},
		{"a CSI volume without", volume(corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{}}), "[]"},
		{"AzureFile", volume(corev1.VolumeSource{AzureFile: &corev1.AzureFileVolumeSource{SecretName: "x"}}), "[x]"},
		{"CephFS", volume(corev1.VolumeSource{CephFS: &corev1.CephFSVolumeSource{SecretRef: ref}}), "[x]"},
		{"Cinder", volume(corev1.VolumeSource{Cinder: &corev1.CinderVolumeSource{SecretRef: ref}}), "[x]"},
		{"FlexVolume", volume(corev1.VolumeSource{FlexVolume: &corev1.FlexVolumeSource{SecretRef: ref}}), "[x]"},
		{"RBD", volume(corev1.VolumeSource{RBD: &corev1.RBDVolumeSource{SecretRef: ref}}), "[x]"},
		{"ScaleIO", volume(corev1.VolumeSource{ScaleIO: &corev1.ScaleIOVolumeSource{SecretRef: ref}}), "[x]"},
		{"ISCSI", volume(corev1.VolumeSource{ISCSI: &corev1.ISCSIVolumeSource{SecretRef: ref}}), "[x]"},
		{"StorageOS", volume(corev1.VolumeSource{StorageOS: &corev1.StorageOSVolumeSource{SecretRef: ref}}), "[x]"},
		{"RBD without", volume(corev1.VolumeSource{RBD: &corev1.RBDVolumeSource{}}), "[]"},
	} {
		pod := &corev1.Pod{Spec: test.pod}
		if got := fmt.Sprint(secretsOf(pod)); got != test.want {
			t.Errorf("%s: %s, want %s", test.what, got, test.want)
		}
		if isReferenced([]*corev1.Pod{{}, pod}, "x") != (test.want != "[]") || isReferenced([]*corev1.Pod{pod}, "z") {
			t.Errorf("%s: who uses a secret is not known", test.what)
		}
	}
	if isReferenced(nil, "x") {
		t.Error("nobody uses a secret")
	}
}

// TestLegacyTokensInAWorld: a token nothing uses is declared invalid, and goes after another such time; one that a pod names stays.
func TestLegacyTokensInAWorld(t *testing.T) {
	const life = 10 * day
	world.In(t, func(w *world.World) {
		world.Create(w, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: trackingMap}, Data: map[string]string{trackingKey: time.Now().Format(time.DateOnly)}})
		account := world.Create(w, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "robot"}, Secrets: []corev1.ObjectReference{{Name: "unused"}, {Name: "mounted"}}})
		for _, name := range []string{"unused", "mounted", "by-hand"} {
			world.Create(w, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name,
				Annotations: map[string]string{corev1.ServiceAccountNameKey: "robot", corev1.ServiceAccountUIDKey: string(account.UID)}}, Type: corev1.SecretTypeServiceAccountToken})
		}
		pod := podOf("default", "user")
		pod.Spec.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "mounted"}}
		world.Create(w, pod)
		defer w.Run(LegacyTokens(life))()
		for _, test := range []struct {
			pass    time.Duration
			invalid string
			gone    bool
		}{{time.Minute, "", false}, {10 * day, "", false}, {2 * day, "2000-01-12", false}, {9 * day, "2000-01-12", false}, {2 * day, "", true}} {
			w.Pass(test.pass)
			if gone := world.Gone[*corev1.Secret](w, "default", "unused"); gone != test.gone {
				t.Errorf("at %v the token is gone: %v", time.Now(), gone)
			} else if !gone {
				if got := world.Get[*corev1.Secret](w, "default", "unused").Labels[invalidSinceLabel]; got != test.invalid {
					t.Errorf("at %v invalid since %q, want %q", time.Now(), got, test.invalid)
				}
			}
		}
		for _, name := range []string{"mounted", "by-hand"} {
			if world.Gone[*corev1.Secret](w, "default", name) || len(world.Get[*corev1.Secret](w, "default", name).Labels) > 0 {
				t.Errorf("%s is gone or invalid", name)
			}
		}
	})
}
