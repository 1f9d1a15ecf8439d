package environment

import (
	"errors"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

func pointer[T any](v T) *T { return &v }

// sources are objects in memory.
type sources struct {
	services map[string][]*corev1.Service
	listed   *[]string // the namespaces whose services were listed
	err      error
}

func (sources) ConfigMap(_, name string) (*corev1.ConfigMap, error) {
	if name != "map" {
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "configmap"}, name)
	}
	return &corev1.ConfigMap{Data: map[string]string{"key": "from map", "1-odd.name": "odd"}}, nil
}

func (sources) Secret(_, name string) (*corev1.Secret, error) {
	if name != "hidden" {
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "secret"}, name)
	}
	return &corev1.Secret{Data: map[string][]byte{"key": []byte("from secret")}}, nil
}

func (s sources) Services(namespace string) ([]*corev1.Service, error) {
	if s.listed != nil {
		*s.listed = append(*s.listed, namespace)
	}
	return s.services[namespace], s.err
}

func (s sources) Service(namespace, name string) (*corev1.Service, error) {
	i := slices.IndexFunc(s.services[namespace], func(service *corev1.Service) bool { return service.Name == name })
	if i < 0 {
		return nil, s.err
	}
	return s.services[namespace][i], s.err
}

func (sources) File(_ *corev1.Pod, _, path string) ([]byte, error) {
	if path != "env" {
		return nil, errors.New("no such file")
	}
	return []byte("# comment\nA='one'\n  B='two\nlines' # more\nC= 'unset'\n"), nil
}

func testPod() *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: "pod", Namespace: "space", UID: "uid", Labels: map[string]string{"b": "2", "a": `quo"te`},
			Annotations: map[string]string{"Note": "n", "example.com/x": "multi\nline"},
		},
		Spec: corev1.PodSpec{
			NodeName: "node", ServiceAccountName: "account", EnableServiceLinks: pointer(false),
			Volumes:        []corev1.Volume{{Name: "v"}},
			InitContainers: []corev1.Container{{Name: "init"}},
			Containers: []corev1.Container{{Name: "main", Resources: corev1.ResourceRequirements{
				Requests: corev1.ResourceList{"cpu": resource.MustParse("1500m"), "memory": resource.MustParse("100Mi"), "hugepages-2Mi": resource.MustParse("4Mi")},
				Limits:   corev1.ResourceList{"memory": resource.MustParse("1Gi")},
			}}},
		},
	}
}

var testNode = &corev1.Node{Status: corev1.NodeStatus{Allocatable: corev1.ResourceList{
	"cpu": resource.MustParse("3500m"), "memory": resource.MustParse("8Gi"), "ephemeral-storage": resource.MustParse("10Gi"),
}}}

// of returns the environment as lines of text.
func of(pod *corev1.Pod, c *corev1.Container, s Sources) (string, error) {
	variables, err := Of(Input{
		Pod: pod, Container: c, Node: testNode, PodIPs: []string{"10.0.0.1", "fd00::1"}, HostIPs: []string{"192.0.2.1", "2001:db8::1"}, Sources: s,
	})
	lines := make([]string, len(variables))
	for i, v := range variables {
		lines[i] = v.Name + "=" + v.Value
	}
	return strings.Join(lines, "\n"), err
}

func TestVariables(t *testing.T) {
	field := func(path string) *corev1.EnvVarSource {
		return &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: path}}
	}
	amount := func(name, divisor, container string) *corev1.EnvVarSource {
		ref := &corev1.ResourceFieldSelector{Resource: name, ContainerName: container}
		if divisor != "" {
			ref.Divisor = resource.MustParse(divisor)
		}
		return &corev1.EnvVarSource{ResourceFieldRef: ref}
	}
	configMap := func(name, key string, optional *bool) *corev1.EnvVarSource {
		return &corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{LocalObjectReference: corev1.LocalObjectReference{Name: name}, Key: key, Optional: optional}}
	}
	secret := func(name, key string, optional *bool) *corev1.EnvVarSource {
		return &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{LocalObjectReference: corev1.LocalObjectReference{Name: name}, Key: key, Optional: optional}}
	}
	fileKey := func(volume, path, key string, optional *bool) *corev1.EnvVarSource {
		return &corev1.EnvVarSource{FileKeyRef: &corev1.FileKeySelector{VolumeName: volume, Path: path, Key: key, Optional: optional}}
	}
	yes := pointer(true)
	for _, test := range []struct {
		name   string
		source *corev1.EnvVarSource
		want   string // "<unset>" for none
		err    string
	}{
		{"name", field("metadata.name"), "pod", ""},
		{"namespace", field("metadata.namespace"), "space", ""},
		{"uid", field("metadata.uid"), "uid", ""},
		{"labels", field("metadata.labels"), "a=\"quo\\\"te\"\nb=\"2\"", ""},
		{"annotations", field("metadata.annotations"), "Note=\"n\"\nexample.com/x=\"multi\\nline\"", ""},
		{"label", field("metadata.labels['b']"), "2", ""},
		{"absent label", field("metadata.labels['c']"), "", ""},
		{"annotation", field("metadata.annotations['example.com/x']"), "multi\nline", ""},
		{"annotation in capitals", field("metadata.annotations['Note']"), "n", ""},
		{"odd label", field("metadata.labels['a b']"), "", "invalid key subscript in metadata.labels['a b']: "},
		{"subscript of a name", field("metadata.name['x']"), "", "field label does not support subscript: metadata.name['x']"},
		{"node", field("spec.nodeName"), "node", ""},
		{"account", field("spec.serviceAccountName"), "account", ""},
		{"host IP", field("status.hostIP"), "192.0.2.1", ""},
		{"host IPs", field("status.hostIPs"), "192.0.2.1,2001:db8::1", ""},
		{"pod IP", field("status.podIP"), "10.0.0.1", ""},
		{"pod IPs", field("status.podIPs"), "10.0.0.1,fd00::1", ""},
		{"phase", field("status.phase"), "", "unsupported fieldPath: status.phase"},
		{"unknown", field("spec.replicas"), "", "field label not supported: spec.replicas"},
		{"version", &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v2", FieldPath: "metadata.name"}}, "", "unsupported pod version: v2"},
		{"cpu request, rounded up", amount("requests.cpu", "", ""), "2", ""},
		{"cpu request in thousandths", amount("requests.cpu", "1m", ""), "1500", ""},
		{"cpu limit of the node", amount("limits.cpu", "", ""), "4", ""},
		{"memory limit", amount("limits.memory", "", ""), "1073741824", ""},
		{"memory limit in mebibytes", amount("limits.memory", "1Mi", ""), "1024", ""},
		{"storage limit of the node", amount("limits.ephemeral-storage", "1Gi", ""), "10", ""},
		{"storage request", amount("requests.ephemeral-storage", "", ""), "0", ""},
		{"huge pages", amount("requests.hugepages-2Mi", "1Mi", ""), "4", ""},
		{"of another container", amount("requests.cpu", "1m", "main"), "1500", ""},
		{"of an init container", amount("limits.cpu", "", "init"), "0", ""},
		{"of none", amount("limits.cpu", "", "absent"), "", "container absent not found"},
		{"of nothing", amount("limits.gpus", "", ""), "", "unsupported container resource : limits.gpus"},
		{"config map", configMap("map", "key", nil), "from map", ""},
		{"config map, no key", configMap("map", "no", nil), "", "couldn't find key no in ConfigMap space/map"},
		{"config map, no key, optional", configMap("map", "no", yes), "<unset>", ""},
		{"config map, none", configMap("no", "key", nil), "", `configmap "no" not found`},
		{"config map, none, optional", configMap("no", "key", yes), "<unset>", ""},
		{"secret", secret("hidden", "key", nil), "from secret", ""},
		{"secret, no key", secret("hidden", "no", nil), "", "couldn't find key no in Secret space/hidden"},
		{"secret, no key, optional", secret("hidden", "no", yes), "<unset>", ""},
		{"secret, none", secret("no", "key", nil), "", `secret "no" not found`},
		{"secret, none, optional", secret("no", "key", yes), "<unset>", ""},
		{"file", fileKey("v", "env", "A", nil), "one", ""},
		{"file, lines", fileKey("v", "env", "B", nil), "two\nlines", ""},
		{"file, no key", fileKey("v", "env", "X", nil), "", `environment variable key "X" not found in file "env"`},
		{"file, set to nothing, optional", fileKey("v", "env", "C", yes), "<unset>", ""},
		{"file, none", fileKey("v", "no", "A", nil), "", "couldn't parse env file"},
		{"file, no volume", fileKey("no", "env", "A", nil), "", `cannot find the volume "no" referenced by FileKeyRef`},
	} {
		pod := testPod()
		c := &pod.Spec.Containers[0]
		c.Env = []corev1.EnvVar{{Name: "V", ValueFrom: test.source}}
		got, err := of(pod, c, sources{})
		switch {
		case test.err != "":
			if err == nil || !strings.HasPrefix(err.Error(), test.err) {
				t.Errorf("%s: error %v", test.name, err)
			}
		case err != nil:
			t.Errorf("%s: %v", test.name, err)
		case test.want == "<unset>" && got != "", test.want != "<unset>" && got != "V="+test.want:
			t.Errorf("%s: %q", test.name, got)
		}
	}
}

func TestPodLevelLimits(t *testing.T) {
	pod := testPod()
	pod.Spec.Resources = &corev1.ResourceRequirements{Limits: corev1.ResourceList{"cpu": resource.MustParse("1")}}
	c := &pod.Spec.Containers[0]
	c.Env = []corev1.EnvVar{{Name: "V", ValueFrom: &corev1.EnvVarSource{ResourceFieldRef: &corev1.ResourceFieldSelector{Resource: "limits.cpu"}}}}
	if got, err := of(pod, c, sources{}); err != nil || got != "V=1" {
		t.Errorf("%q, %v", got, err)
	}
	if _, err := Of(Input{Pod: pod, Container: c, Sources: sources{}}); err == nil || err.Error() != "failed to find node object, expected a node" {
		t.Error(err)
	}
}

func TestEnvFromAndOrder(t *testing.T) {
	pod := testPod()
	c := &pod.Spec.Containers[0]
	ref := func(name string) corev1.LocalObjectReference { return corev1.LocalObjectReference{Name: name} }
	c.EnvFrom = []corev1.EnvFromSource{
		{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: ref("map")}},
		{Prefix: "p_", SecretRef: &corev1.SecretEnvSource{LocalObjectReference: ref("hidden")}},
		{Prefix: "%", ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: ref("map")}},
		{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: ref("no"), Optional: pointer(true)}},
		{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: ref("no"), Optional: pointer(true)}},
	}
	c.Env = []corev1.EnvVar{
		{Name: "FIRST", Value: "1"}, {Name: "key", Value: "own"}, {Name: "USES", Value: "$(FIRST) $(key) $(p_key) $(LATER) $$(FIRST) $(KUBERNETES_SERVICE_HOST)"},
		{Name: "LATER", Value: "2"}, {Name: "EMPTY"},
	}
	s := sources{services: map[string][]*corev1.Service{"default": {service("kubernetes", "10.96.0.1", 443)}}}
	got, err := of(pod, c, s)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"key=own", "1-odd.name=odd", "p_key=from secret", "%key=from map", "FIRST=1", "EMPTY=", "LATER=2",
		"USES=1 own from secret $(LATER) $(FIRST) 10.96.0.1", "KUBERNETES_SERVICE_HOST=10.96.0.1",
	} {
		if !strings.Contains("\n"+got+"\n", "\n"+want+"\n") {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
	c.EnvFrom = []corev1.EnvFromSource{{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: ref("no")}}}
	if _, err := of(pod, c, s); err == nil || err.Error() != `configmap "no" not found` {
		t.Error(err)
	}
}

func service(name, address string, ports ...int32) *corev1.Service {
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.ServiceSpec{ClusterIP: address}}
	for i, port := range ports {
		p := corev1.ServicePort{Port: port}
		if i > 0 {
			p.Name, p.Protocol = "my-port", corev1.ProtocolUDP
		}
		s.Spec.Ports = append(s.Spec.Ports, p)
	}
	return s
}

func TestServices(t *testing.T) {
	s := sources{services: map[string][]*corev1.Service{
		"default": {service("kubernetes", "10.96.0.1", 443), service("elsewhere", "10.96.0.9", 1)},
		"space":   {service("my-web", "fd00::5", 80, 53), service("headless", "None", 80), service("external", "", 80), service("kubernetes", "10.1.1.1", 1)},
	}}
	api := `KUBERNETES_PORT=tcp://10.96.0.1:443
KUBERNETES_PORT_443_TCP=tcp://10.96.0.1:443
KUBERNETES_PORT_443_TCP_ADDR=10.96.0.1
KUBERNETES_PORT_443_TCP_PORT=443
KUBERNETES_PORT_443_TCP_PROTO=tcp
KUBERNETES_SERVICE_HOST=10.96.0.1
KUBERNETES_SERVICE_PORT=443`
	own := `
MY_WEB_PORT=tcp://[fd00::5]:80
MY_WEB_PORT_53_UDP=udp://[fd00::5]:53
MY_WEB_PORT_53_UDP_ADDR=fd00::5
MY_WEB_PORT_53_UDP_PORT=53
MY_WEB_PORT_53_UDP_PROTO=udp
MY_WEB_PORT_80_TCP=tcp://[fd00::5]:80
MY_WEB_PORT_80_TCP_ADDR=fd00::5
MY_WEB_PORT_80_TCP_PORT=80
MY_WEB_PORT_80_TCP_PROTO=tcp
MY_WEB_SERVICE_HOST=fd00::5
MY_WEB_SERVICE_PORT=80
MY_WEB_SERVICE_PORT_MY_PORT=53`
	for links, want := range map[bool]string{false: api, true: api + own} {
		pod := testPod()
		pod.Spec.EnableServiceLinks = &links
		s.listed = new([]string)
		if got, err := of(pod, &corev1.Container{}, s); err != nil || got != want {
			t.Errorf("links %v: %v\n%s", links, err, got)
		}
		// The namespace default may have many services that the pod does not need.
		if slices.Contains(*s.listed, "default") || slices.Contains(*s.listed, "space") != links {
			t.Errorf("links %v: the services of %q are listed", links, *s.listed)
		}
	}
	pod := testPod()
	pod.Spec.EnableServiceLinks = nil
	if _, err := of(pod, &corev1.Container{}, s); err == nil || err.Error() != "nil pod.spec.enableServiceLinks encountered, cannot construct envvars" {
		t.Error(err)
	}
	s.err = errors.New("services have not yet been read at least once, cannot construct envvars")
	if _, err := of(testPod(), &corev1.Container{}, s); !errors.Is(err, s.err) {
		t.Error(err)
	}
}

func TestExpand(t *testing.T) {
	values := map[string]string{"A": "1", "B": "$(A)", "": "empty"}
	for text, want := range map[string]string{
		"$(A)": "1", "x$(A)y$(A)": "x1y1", "$$(A)": "$(A)", "$$$(A)": "$1", "$$$$(A)": "$$(A)", "$A": "$A", "$": "$", "a$": "a$", "$$": "$",
		"$(A": "$(A", "$(NO)": "$(NO)", "$(B)": "$(A)", "$()": "empty", "$((A))": "$((A))", "$(A)$(B": "1$(B", "ü$(A)ß": "ü1ß", "": "", "$ä$(A)": "$ä1", "$(A $(A)": "$(A $(A)",
	} {
		got := Expand(text, func(name string) string {
			if value, ok := values[name]; ok {
				return value
			}
			return "$(" + name + ")"
		})
		if got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
	env := []corev1.EnvVar{{Name: "A", Value: "1"}}
	if got := ExpandAll([]string{"$(A)", "$(NO)"}, env); got[0] != "1" || got[1] != "$(NO)" {
		t.Error(got)
	}
	if ExpandAll(nil, env) != nil {
		t.Error("no command has become an empty one")
	}
}

func TestFileVariable(t *testing.T) {
	for content, want := range map[string]string{
		"K='v'":              "v",
		"K='v'\n":            "v",
		"\n  \t K='v'":       "v",
		"K=''":               "",
		"K='a\nb'":           "a\nb",
		"K='a # b' # c":      "a # b",
		"X='1'\r\nK='v'\r\n": "v",
		"X='K=1'\nK='v'":     "v",
		"K= 'v'":             "",
		"K = 'v'":            "!whitespace before '='",
		"K":                  "!missing '='",
		"='v'":               "!empty variable name",
		"K=v":                "!value must be enclosed",
		`K="v"`:              "!value must be enclosed",
		"K='v":               "!unclosed single quote",
		"K='v'x":             "!unexpected content after closing quote",
		"export K='v'":       "", // the name is "export K", as upstream reads it
	} {
		got, err := fileVariable(content, "K")
		if wrong, isError := strings.CutPrefix(want, "!"); isError {
			if err == nil || !strings.Contains(err.Error(), wrong) {
				t.Errorf("%q: %v", content, err)
			}
		} else if err != nil || got != want {
			t.Errorf("%q: %q, %v", content, got, err)
		}
	}
}
