package managedfields

import (
	"fmt"
	"log/slog"
	"math/rand"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	quantity "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/randfill"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"skiff/internal/api"
	"skiff/internal/api/core"
	"skiff/internal/kind"
	"skiff/internal/openapi"
)

// resourceOf returns the managers of a kind in one of its versions.
func resourceOf(k *kind.Kind, version *kind.Version) *Resource {
	return NewFactory(openapi.TypeConverter, slog.New(slog.DiscardHandler)).Resource(k, version)
}

// storedKinds are all kinds of the table that clients write.
func storedKinds() []*kind.Kind {
	return slices.DeleteFunc(api.Kinds(api.Settings{}), func(k *kind.Kind) bool { return !k.Serves("update") })
}

// fillObject makes a random object that is free of what no real object has: values of types the API does not use.
func fillObject(r *rand.Rand, obj any, elements int) {
	randfill.New().RandSource(r).NilChance(0.4).NumElements(0, elements).MaxDepth(12).Funcs(
		func(v *metav1.TypeMeta, _ randfill.Continue) {},
		func(v *metav1.ObjectMeta, c randfill.Continue) {
			v.Name, v.Namespace = "x", "y"
			c.Fill(&v.Labels)
			c.Fill(&v.Annotations)
			v.Finalizers = randomTexts(c)
			for _, uid := range randomTexts(c) {
				v.OwnerReferences = append(v.OwnerReferences, metav1.OwnerReference{UID: types.UID(uid), Name: uid, Kind: "K", APIVersion: "v1"})
			}
		},
		func(v *quantity.Quantity, c randfill.Continue) {
			*v = *quantity.NewMilliQuantity(c.Int63n(1e6), quantity.DecimalSI)
		},
		func(v *intstr.IntOrString, c randfill.Continue) { *v = intstr.FromInt32(c.Int31n(100)) },
		func(v *metav1.Time, c randfill.Continue) { *v = metav1.Unix(c.Int63n(1e9), c.Int63n(1e9)) },
		func(v *metav1.MicroTime, c randfill.Continue) {
			*v = metav1.NewMicroTime(time.Unix(c.Int63n(1e9), c.Int63n(1e9)))
		},
		func(v *runtime.RawExtension, c randfill.Continue) { v.Raw = fmt.Appendf(nil, `{"a":%d}`, c.Intn(3)) },
		func(v *apiextensionsv1.JSON, c randfill.Continue) { v.Raw = fmt.Appendf(nil, `{"a":%d}`, c.Intn(3)) },
		func(v *metav1.FieldsV1, c randfill.Continue) {},
		func(v *float64, c randfill.Continue) { *v = float64(c.Intn(4)) },
		func(v *string, c randfill.Continue) { *v = randomText(c) },
	).Fill(obj)
}

func randomText(c randfill.Continue) string {
	texts := []string{"", "a", "b", "a-b", "a.b", "ab", "A", "app", "k8s.io/name", "x/y", "Zz", "10", "9", `quo"te`, `back\slash`, "<html>&", "ünïcode", "tab\t"}
	return texts[c.Intn(len(texts))]
}

func randomTexts(c randfill.Continue) []string {
	var texts []string
	seen := map[string]bool{}
	for range c.Intn(4) {
		if t := randomText(c); !seen[t] {
			seen[t] = true
			texts = append(texts, t)
		}
	}
	return texts
}

func rawEntries(obj kind.Object) []metav1.ManagedFieldsEntry {
	entries := obj.GetManagedFields()
	for i := range entries {
		if entries[i].Time != nil {
			entries[i].Time = &metav1.Time{Time: entries[i].Time.Truncate(time.Second)}
		}
	}
	return entries
}

// TestFastEqualsLibrary writes random histories with the fast path and with the library: managedFields must be equal, byte for
// byte, after every write.
func TestFastEqualsLibrary(t *testing.T) {
	rounds := 30
	if testing.Short() {
		rounds = 5
	}
	type served struct {
		*kind.Kind
		version *kind.Version
	}
	var all []served
	for _, k := range storedKinds() {
		for i := range k.Versions {
			all = append(all, served{k, &k.Versions[i]})
		}
	}
	for _, k := range all {
		t.Run(k.Plural+" "+k.version.GVK.GroupVersion().String(), func(t *testing.T) {
			res := resourceOf(k.Kind, k.version)
			main, err := res.Manager(nil)
			if err != nil {
				t.Fatal(err)
			}
			managers := []*Manager{main}
			for i := range k.Subresources {
				if sub := &k.Subresources[i]; sub.Update != nil {
					part, err := res.Manager(sub)
					if err != nil {
						t.Fatal(err)
					}
					managers = append(managers, part)
				}
			}
			if main.ownedDescriptor == nil {
				t.Fatal("the type has no descriptor")
			}
			fast, left, refused := 0, 0, 0
			for round := range rounds {
				r := rand.New(rand.NewSource(int64(round)))
				live := res.kind.New()
				for step := range 6 {
					next := live.DeepCopyObject().(kind.Object)
					if step == 0 || r.Intn(3) == 0 {
						entries, uid := next.GetManagedFields(), next.GetUID()
						next = res.kind.New()
						fillObject(r, next, 1+r.Intn(3))
						next.SetManagedFields(entries)
						next.SetUID(uid)
					} else {
						disturb(r, reflect.ValueOf(next).Elem())
						kind.ClearType(next)
					}
					manager := managers[0]
					if step > 0 {
						manager = managers[r.Intn(len(managers))]
					}
					writer := []string{"kubectl", "controller", ""}[r.Intn(3)]
					if _, err := manager.library.Update(live.DeepCopyObject(), next.DeepCopyObject(), writer); err != nil {
						refused++ // items without keys, which validation keeps out of real objects
						continue
					}
					want, got := next.DeepCopyObject().(kind.Object), next.DeepCopyObject().(kind.Object)
					now := time.Now()
					for manager.updateWithLibrary(live, want, writer); time.Now().Unix() != now.Unix(); now = time.Now() {
						want = next.DeepCopyObject().(kind.Object)
						manager.updateWithLibrary(live, want, writer)
					}
					if !manager.updateFast(live, got, writer, now) {
						left++
						got = want
					} else {
						fast++
					}
					if w, g := rawEntries(want), rawEntries(got); !reflect.DeepEqual(w, g) {
						t.Fatalf("round %d step %d as %q of %q:\nlibrary %s\nfast    %s", round, step, writer, manager.subresource, show(w), show(g))
					}
					live = got
					live.SetUID("uid")
				}
			}
			t.Logf("%d on the fast path, %d left to the library, %d refused by it", fast, left, refused)
			if fast == 0 {
				t.Error("the fast path was never taken")
			}
		})
	}
}

func show(entries []metav1.ManagedFieldsEntry) string {
	text := ""
	for _, e := range entries {
		text += fmt.Sprintf("\n  %s %s %s %s %v %s", e.Manager, e.Operation, e.APIVersion, e.Subresource, e.Time, e.FieldsV1.GetRawString())
	}
	return text
}

// disturb changes a few fields somewhere in a value.
func disturb(r *rand.Rand, v reflect.Value) {
	switch v.Kind() {
	case reflect.Struct:
		if v.NumField() == 0 {
			return
		}
		if reflect.PointerTo(v.Type()).Implements(marshalerType) {
			fillObject(r, v.Addr().Interface(), 2)
			return
		}
		for range 1 + r.Intn(2) {
			if f := v.Field(r.Intn(v.NumField())); f.CanSet() {
				disturb(r, f)
			}
		}
	case reflect.Pointer:
		if v.IsNil() || r.Intn(6) == 0 {
			if r.Intn(2) == 0 {
				v.SetZero()
				return
			}
			fresh := reflect.New(v.Type().Elem())
			fillObject(r, fresh.Interface(), 2)
			v.Set(fresh)
			return
		}
		disturb(r, v.Elem())
	case reflect.Slice, reflect.Map:
		if v.Type() == reflect.TypeFor[[]metav1.ManagedFieldsEntry]() {
			return
		}
		if v.Kind() == reflect.Slice && v.Len() > 0 && r.Intn(3) > 0 {
			disturb(r, v.Index(r.Intn(v.Len())))
			return
		}
		fillObject(r, v.Addr().Interface(), 3)
	default:
		fillObject(r, v.Addr().Interface(), 2)
	}
}

func TestCompareElements(t *testing.T) {
	ordered := []string{
		`"f:a"`, `"f:a-b"`, `"f:ab"`, `"f:b"`,
		`"k:{\"containerPort\":9,\"protocol\":\"TCP\"}"`, `"k:{\"containerPort\":80,\"protocol\":\"TCP\"}"`,
		`"k:{\"containerPort\":80,\"protocol\":\"UDP\"}"`,
		`"k:{\"name\":\"a\"}"`, `"k:{\"name\":\"a-b\"}"`, `"k:{\"name\":\"ab\"}"`,
		`"v:\"a\""`, `"v:\"a-b\""`, `"v:\"ab\""`,
	}
	for i, a := range ordered {
		for j, b := range ordered {
			want := min(1, max(-1, i-j))
			if got := compareElements(a, b); got != want {
				t.Errorf("compareElements(%s, %s) = %d, want %d", a, b, got, want)
			}
		}
	}
}

// FuzzFieldSets: text that the parser accepts is written back unchanged, by this package and by the library.
func FuzzFieldSets(f *testing.F) {
	m, err := resourceOf(core.Pod, &core.Pod.Versions[0]).Manager(nil)
	if err != nil {
		f.Fatal(err)
	}
	for _, seed := range []string{
		`{}`, `{"f:metadata":{"f:labels":{".":{},"f:app":{}}}}`, `{"f:metadata":{"f:finalizers":{".":{},"v:\"a\"":{},"v:\"b\"":{}}}}`,
		`{"f:spec":{"f:containers":{"k:{\"name\":\"c\"}":{".":{},"f:image":{},"f:ports":{".":{},"k:{\"containerPort\":80,\"protocol\":\"TCP\"}":{".":{},"f:containerPort":{}}}}}}}`,
		`{"f:metadata":{"f:labels":{"f:\u0061":{}}}}`, `{"f:metadata":{"f:labels":{".":{}}}}`, `{"f:metadata":{"f:finalizers":{"v:\"b\"":{},"v:\"a\"":{}}}}`,
		`{"f:metadata":{"f:ownerReferences":{"k:{\"uid\":\"\\u003ca\"}":{}}}}`, `{"f:metadata":{"f:finalizers":{"v:0":{},"v:1e1":{}}}}`,
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		var p setParser
		nodes, ok := p.parse(text, m.descriptor)
		if !ok {
			return
		}
		if got := string(appendSet(nil, nodes, false)); got != text || setSize(nodes) < len(text) {
			t.Fatalf("%q written as %q", text, got)
		}
		set := fieldpath.NewSet()
		if err := set.FromJSON(strings.NewReader(text)); err != nil {
			t.Fatalf("%q: %v", text, err)
		}
		if raw, err := set.ToJSON(); err != nil || string(raw) != text {
			t.Fatalf("%q written by the library as %q: %v", text, raw, err)
		}
	})
}

func TestManagerName(t *testing.T) {
	for _, test := range []struct{ option, agent, want string }{
		{"given", "kubectl/v1", "given"},
		{"", "kubectl/v1.37 (linux)", "kubectl"},
		{"", "no slash", "no slash"},
		{"", "", ""},
		{"", "a\x01b/1", "ab"},
		{"", string(make([]byte, 200)) + "/", ""},
	} {
		if got := ManagerName(test.option, test.agent); got != test.want {
			t.Errorf("ManagerName(%q, %q) = %q, want %q", test.option, test.agent, got, test.want)
		}
	}
}

func benchmarkPod() *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: "web-1", Namespace: "default", UID: "u", Labels: map[string]string{"app": "web", "tier": "front", "pod-template-hash": "abc"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web", UID: "o"}},
		},
		Spec: corev1.PodSpec{
			RestartPolicy: corev1.RestartPolicyAlways, DNSPolicy: corev1.DNSClusterFirst, SchedulerName: "default-scheduler",
			TerminationGracePeriodSeconds: new(int64), SecurityContext: &corev1.PodSecurityContext{}, ServiceAccountName: "default",
			Volumes: []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}},
			Containers: []corev1.Container{{
				Name: "web", Image: "nginx:1", ImagePullPolicy: corev1.PullIfNotPresent, TerminationMessagePath: "/dev/termination-log",
				TerminationMessagePolicy: corev1.TerminationMessageReadFile,
				Ports:                    []corev1.ContainerPort{{ContainerPort: 80, Protocol: corev1.ProtocolTCP}},
				Env:                      []corev1.EnvVar{{Name: "A", Value: "1"}, {Name: "B", Value: "2"}},
				VolumeMounts:             []corev1.VolumeMount{{Name: "data", MountPath: "/data"}},
				Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
					corev1.ResourceCPU: quantity.MustParse("100m"), corev1.ResourceMemory: quantity.MustParse("64Mi")}},
			}},
		},
	}
}

// BenchmarkUpdate compares the fast path with the library for the most frequent writes.
func BenchmarkUpdate(b *testing.B) {
	configMap := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "c", Namespace: "default"}, Data: map[string]string{"a": "1", "b": "2", "c": "3"}}
	changedMap := configMap.DeepCopy()
	changedMap.Data["a"] = "2"
	changedPod := benchmarkPod()
	changedPod.Labels["more"] = "yes"
	changedPod.Spec.Containers[0].Image = "nginx:2"
	for _, c := range []struct {
		name          string
		kind          *kind.Kind
		first, second kind.Object
	}{{"pod", core.Pod, benchmarkPod(), changedPod}, {"configmap", core.ConfigMap, configMap, changedMap}} {
		res := resourceOf(c.kind, &c.kind.Versions[0])
		m, err := res.Manager(nil)
		if err != nil {
			b.Fatal(err)
		}
		now := time.Now()
		empty := res.kind.New()
		live := c.first.DeepCopyObject().(kind.Object)
		m.updateWithLibrary(empty, live, "kubectl")
		live.SetUID("u")
		second := c.second.DeepCopyObject().(kind.Object)
		second.SetUID("u")
		for _, way := range []struct {
			name   string
			update func(live, next kind.Object)
		}{
			{"fast", func(live, next kind.Object) {
				if !m.updateFast(live, next, "kubectl", now) {
					b.Fatal("the fast path does not cover it")
				}
			}},
			{"library", func(live, next kind.Object) { m.updateWithLibrary(live, next, "kubectl") }},
		} {
			b.Run(c.name+"/create/"+way.name, func(b *testing.B) {
				b.ReportAllocs()
				next := c.first.DeepCopyObject().(kind.Object)
				for b.Loop() {
					next.SetManagedFields(nil)
					way.update(empty, next)
				}
			})
			b.Run(c.name+"/update/"+way.name, func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					second.SetManagedFields(nil)
					way.update(live, second)
				}
			})
			b.Run(c.name+"/unchanged/"+way.name, func(b *testing.B) {
				b.ReportAllocs()
				next := live.DeepCopyObject().(kind.Object)
				for b.Loop() {
					next.SetManagedFields(nil)
					way.update(live, next)
				}
			})
		}
	}
}
