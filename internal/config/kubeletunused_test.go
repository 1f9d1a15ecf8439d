package config

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"

	"skiff/internal/configfile"
)

// kubeletValues are valid values of fields for which setDistinct makes an invalid one.
var kubeletValues = map[string]any{
	"cgroupDriver": "systemd", "memoryReservationPolicy": "TieredReservation",
	"address": "192.0.2.1", "healthzBindAddress": "192.0.2.1", "clusterDNS": []string{"192.0.2.1"}, "containerLogMaxSize": "7Mi",
	"crashLoopBackOff":       map[string]string{"maxContainerRestartPeriod": "7s"},
	"enforceNodeAllocatable": []string{"none"}, "kubeReserved": map[string]string{"cpu": "7m"}, "systemReserved": map[string]string{"cpu": "7m"},
	"memorySwap": map[string]string{"swapBehavior": "LimitedSwap"}, "podLogsDir": "/seven", "staticPodPath": "/seven",
	"authentication": map[string]any{"webhook": map[string]any{"enabled": false}}, "logging": map[string]string{"format": "json"},
	"tlsMinVersion": "VersionTLS13", "tlsCipherSuites": []string{"TLS_AES_128_GCM_SHA256"},
	"imageMaximumGCAge": "7h0m0s", "cpuCFSQuotaPeriod": "7ms",
	"cpuManagerPolicy": "static", "reservedSystemCPUs": "0,7", "memoryManagerPolicy": "Static",
	"reservedMemory":        []kubeletconfig.MemoryReservation{{NumaNode: 1, Limits: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("7Mi")}}},
	"topologyManagerPolicy": "restricted", "topologyManagerScope": "pod", "featureGates": map[string]bool{GateCPUManagerAlphaOptions: true},
	"registerWithTaints": []corev1.Taint{{Key: "seven", Effect: corev1.TaintEffectNoSchedule}},
}

// setDistinct sets a value to something that is not a default.
func setDistinct(v reflect.Value) {
	switch value := v.Addr().Interface().(type) {
	case *metav1.Duration:
		value.Duration = 7e9
		return
	case *resource.Quantity:
		*value = resource.MustParse("7")
		return
	}
	switch v.Kind() {
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int32, reflect.Int64:
		v.SetInt(7)
	case reflect.Uint32:
		v.SetUint(7)
	case reflect.Float64:
		v.SetFloat(0.7)
	case reflect.String:
		v.SetString("seven")
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		setDistinct(v.Elem())
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		setDistinct(v.Index(0))
	case reflect.Map:
		element := reflect.New(v.Type().Elem()).Elem()
		setDistinct(element)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(reflect.ValueOf("seven").Convert(v.Type().Key()), element)
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				setDistinct(v.Field(i))
			}
		}
	default:
		panic(fmt.Sprintf("no value of type %s", v.Type()))
	}
}

// kubeletFile writes a KubeletConfiguration with one field and returns the node that reads it.
func kubeletFile(t *testing.T, fields map[string]any) *Node {
	t.Helper()
	fields["apiVersion"], fields["kind"] = kubeletconfig.SchemeGroupVersion.String(), "KubeletConfiguration"
	data, err := json.Marshal(fields)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "kubelet.json")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return &Node{ConfigFile: path}
}

// TestEveryKubeletField sets every field alone to a value that is not its default. The value is in the resulting configuration, or the error
// or the warning names the field.
func TestEveryKubeletField(t *testing.T) {
	typ := reflect.TypeFor[kubeletconfig.KubeletConfiguration]()
	for i := range typ.NumField() {
		f := typ.Field(i)
		name := configfile.FieldName(f.Name, f.Tag)
		if f.Anonymous {
			continue
		}
		t.Run(name, func(t *testing.T) {
			set := reflect.New(f.Type).Elem()
			setDistinct(set)
			if f.Type.Kind() == reflect.Pointer && f.Type.Elem().Kind() == reflect.Bool && kubeletBoolDefault(f.Name) {
				set.Elem().SetBool(false)
			}
			fields := map[string]any{name: set.Interface()}
			if value, ok := kubeletValues[name]; ok {
				fields[name] = value
			}
			if name == "shutdownGracePeriodCriticalPods" {
				fields["shutdownGracePeriod"] = "9s" // which it is a part of
			}
			unused := slices.DeleteFunc(slices.Clone(KubeletUnused), func(u configfile.Unused) bool {
				return u.Path != name && !strings.HasPrefix(u.Path, name+".")
			})
			settings, err := kubeletFile(t, fields).KubeletConfiguration()
			if len(unused) == 0 {
				if err != nil {
					t.Fatal(err)
				}
				checkSet(t, fields[name], reflect.ValueOf(settings).Elem().FieldByName(f.Name).Interface())
				return
			}
			var report string
			if err != nil {
				report = err.Error()
			} else {
				report = strings.Join(KubeletWarnings(settings), "\n")
			}
			for _, u := range unused {
				if !strings.Contains(report, u.Path) {
					t.Errorf("%s is set and has no effect, but the report is %q", u.Path, report)
				}
				if !u.Harmless && err == nil {
					t.Errorf("%s is accepted", u.Path)
				}
			}
		})
	}
}

// kubeletBoolDefault reports whether the default of a field that is a pointer to a bool is true.
func kubeletBoolDefault(name string) bool {
	s := &kubeletconfig.KubeletConfiguration{}
	defaultKubeletConfiguration(s)
	if value := reflect.ValueOf(s).Elem().FieldByName(name); !value.IsNil() {
		return value.Elem().Bool()
	}
	// The fields that have no effect: the value that is not accepted.
	i := slices.IndexFunc(KubeletUnused, func(u configfile.Unused) bool { return strings.EqualFold(u.Path, name) })
	return i >= 0 && slices.Contains(KubeletUnused[i].Accepted, "true")
}

// checkSet compares the field of a file with the resulting configuration, as JSON.
func checkSet(t *testing.T, file, got any) {
	t.Helper()
	want, err := json.Marshal(file)
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(got)
	if err != nil {
		t.Fatal(err)
	}
	if string(want) != "null" && string(text) != string(want) {
		t.Errorf("configuration has %s, file has %s", text, want)
	}
}

// TestKubeletUnusedAccepted checks that a file may say what skiff does anyway, without a warning.
func TestKubeletUnusedAccepted(t *testing.T) {
	const text = `{"authentication": {"anonymous": {"enabled": false}, "webhook": {"enabled": true, "cacheTTL": "0s"}},
		"authorization": {"mode": "Webhook", "webhook": {"cacheAuthorizedTTL": "0s", "cacheUnauthorizedTTL": "0s"}},
		"cpuManagerReconcilePeriod": "0s", "enableDebuggingHandlers": true, "featureGates": {}, "runtimeRequestTimeout": "2m",
		"memoryManagerPolicy": "None", "topologyManagerPolicy": "none", "readOnlyPort": 0}`
	fields := map[string]any{}
	if err := json.Unmarshal([]byte(text), &fields); err != nil {
		t.Fatal(err)
	}
	settings, err := kubeletFile(t, fields).KubeletConfiguration()
	if err != nil {
		t.Fatal(err)
	}
	if warnings := KubeletWarnings(settings); len(warnings) > 0 {
		t.Errorf("warnings %q", warnings)
	}
}

func TestKubeletFlagsOverrideFile(t *testing.T) {
	node := kubeletFile(t, map[string]any{"containerRuntimeEndpoint": "unix:///file", "registerWithTaints": []corev1.Taint{{Key: "file", Effect: corev1.TaintEffectNoExecute}}})
	node.ContainerRuntimeEndpoint, node.Taints = "unix:///flag", []string{"example.com/a=b:NoSchedule", "c:NoExecute"}
	settings, err := node.KubeletConfiguration()
	if err != nil {
		t.Fatal(err)
	}
	want := []corev1.Taint{{Key: "example.com/a", Value: "b", Effect: corev1.TaintEffectNoSchedule}, {Key: "c", Effect: corev1.TaintEffectNoExecute}}
	if settings.ContainerRuntimeEndpoint != "unix:///flag" || !reflect.DeepEqual(settings.RegisterWithTaints, want) {
		t.Errorf("endpoint %q, taints %v", settings.ContainerRuntimeEndpoint, settings.RegisterWithTaints)
	}
}

// TestEnforceNothing checks that an empty list is not the default.
func TestEnforceNothing(t *testing.T) {
	settings, err := kubeletFile(t, map[string]any{"enforceNodeAllocatable": []string{}}).KubeletConfiguration()
	if err != nil || len(settings.EnforceNodeAllocatable) != 0 {
		t.Errorf("enforced for %q, %v", settings.EnforceNodeAllocatable, err)
	}
}

func TestMergeDefaultEvictionSettings(t *testing.T) {
	for merge, want := range map[bool]int{false: 1, true: 5} {
		settings, err := kubeletFile(t, map[string]any{"mergeDefaultEvictionSettings": merge, "evictionHard": map[string]string{"memory.available": "7%"}}).KubeletConfiguration()
		if err != nil {
			t.Fatal(err)
		}
		if len(settings.EvictionHard) != want || settings.EvictionHard["memory.available"] != "7%" {
			t.Errorf("merge %v: thresholds %v", merge, settings.EvictionHard)
		}
	}
}
