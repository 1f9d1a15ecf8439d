package audit

import (
	"strings"
	"testing"

	"skiff/internal/apiserver/authn"
	"skiff/internal/apiserver/authz"
)

func parse(t testing.TB, text string) *Policy {
	t.Helper()
	policy, warnings, err := ParsePolicy([]byte("apiVersion: audit.k8s.io/v1\nkind: Policy\n" + text))
	if err != nil || len(warnings) > 0 {
		t.Fatal(err, warnings)
	}
	return policy
}

// ask is "user verb [group/]resource[/subresource] [namespace] [name]" or "user verb /path".
func ask(text string) *authz.Attributes {
	words := strings.Fields(text)
	a := &authz.Attributes{User: authn.User{Username: words[0], Groups: []string{"of-" + words[0]}}, Verb: words[1]}
	if strings.HasPrefix(words[2], "/") {
		a.Path = words[2]
		return a
	}
	a.ResourceRequest = true
	if group, rest, ok := strings.Cut(words[2], ":"); ok {
		a.Group, words[2] = group, rest
	}
	a.Resource, a.Subresource, _ = strings.Cut(words[2], "/")
	if len(words) > 3 && words[3] != "-" {
		a.Namespace = words[3]
	}
	if len(words) > 4 {
		a.Name = words[4]
	}
	return a
}

func TestRulesMatch(t *testing.T) {
	for _, tt := range []struct {
		rule string
		yes  []string
		no   []string
	}{
		{"users: [tim]", []string{"tim get pods", "tim get /healthz"}, []string{"ann get pods"}},
		{"userGroups: [of-tim, other]", []string{"tim get pods"}, []string{"ann get pods"}},
		{"verbs: [get, list]", []string{"tim get pods", "ann list apps:deployments"}, []string{"tim watch pods"}},
		{"namespaces: [prod]", []string{"tim get pods prod"}, []string{"tim get pods test", "tim get nodes", "tim get /healthz"}},
		{`namespaces: [""]`, []string{"tim get nodes"}, []string{"tim get pods prod"}},
		{"nonResourceURLs: [/healthz*, /version]", []string{"tim get /healthz", "tim get /healthz/etcd", "tim get /version"}, []string{"tim get /version/x", "tim get pods"}},
		{`nonResourceURLs: ["*"]`, []string{"tim get /x"}, []string{"tim get pods"}},
		{"resources: [{resources: [pods]}]", []string{"tim get pods ns a"}, []string{"tim get pods/log ns a", "tim get apps:pods", "tim get /pods"}},
		{"resources: [{resources: [pods/log]}]", []string{"tim get pods/log ns a"}, []string{"tim get pods ns a", "tim get pods/exec ns a"}},
		{`resources: [{resources: [pods/*]}]`, []string{"tim get pods/log ns a", "tim get pods ns a"}, []string{"tim get nodes"}},
		{`resources: [{group: "*", resources: ["*/scale"]}]`, []string{"tim get apps:deployments/scale ns a"}, []string{"tim get apps:deployments ns a"}},
		{`resources: [{resources: ["*"]}]`, []string{"tim get pods/log ns a", "tim get nodes"}, []string{"tim get apps:deployments"}},
		{`resources: [{group: apps}]`, []string{"tim get apps:deployments/scale"}, []string{"tim get pods"}},
		{`resources: [{resources: [pods], resourceNames: [a]}]`, []string{"tim get pods ns a"}, []string{"tim get pods ns b", "tim list pods ns"}},
		{"{}", []string{"tim get pods", "tim get /x"}, nil},
	} {
		text := tt.rule
		if text == "{}" {
			text = ""
		} else {
			text = ", " + text
		}
		policy := parse(t, "rules: [{level: Metadata"+text+"}]")
		for _, question := range tt.yes {
			if policy.evaluate(ask(question)).level != levelMetadata {
				t.Errorf("%s does not match %q", tt.rule, question)
			}
		}
		for _, question := range tt.no {
			if policy.evaluate(ask(question)).level != levelNone {
				t.Errorf("%s matches %q", tt.rule, question)
			}
		}
	}
}

func TestFirstRuleDecides(t *testing.T) {
	policy := parse(t, `
omitStages: [RequestReceived]
omitManagedFields: true
rules:
- {level: None, users: [quiet]}
- {level: RequestResponse, verbs: [create], omitStages: [Panic], omitManagedFields: false}
- {level: Request}
`)
	for question, want := range map[string]auditConfig{
		"quiet create pods": {level: levelNone, omitted: stageReceived, omitManagedFields: true},
		"tim create pods":   {level: levelRequestResponse, omitted: stageReceived | stagePanic},
		"tim get pods":      {level: levelRequest, omitted: stageReceived, omitManagedFields: true},
	} {
		if got := policy.evaluate(ask(question)); got != want {
			t.Errorf("%s: %+v, want %+v", question, got, want)
		}
	}
}

func TestCredentialsAreNotRecorded(t *testing.T) {
	policy := parse(t, "rules: [{level: RequestResponse}]")
	for question, want := range map[string]level{
		"tim create secrets ns a":                             levelMetadata,
		"tim list secrets":                                    levelMetadata,
		"tim patch secrets ns a":                              levelMetadata,
		"tim create serviceaccounts/token ns a":               levelMetadata,
		"tim create authentication.k8s.io:tokenreviews":       levelMetadata,
		"tim create serviceaccounts ns a":                     levelRequestResponse,
		"tim create authorization.k8s.io:tokenreviews":        levelRequestResponse,
		"tim create apps:secrets ns a":                        levelRequestResponse,
		"tim create authentication.k8s.io:selfsubjectreviews": levelRequestResponse,
	} {
		if got := policy.evaluate(ask(question)).level; got != want {
			t.Errorf("%s is recorded at %s, want %s", question, levelNames[got], levelNames[want])
		}
	}
}

func TestInvalidPolicies(t *testing.T) {
	const head = "apiVersion: audit.k8s.io/v1\nkind: Policy\n"
	for _, tt := range []struct{ text, want string }{
		{"kind: Policy", "apiVersion and kind must be"},
		{"apiVersion: audit.k8s.io/v1beta1\nkind: Policy", "apiVersion and kind must be"},
		{head, "rules: a policy without rules"},
		{head + "rules: [{}]", "rules[0].level: Required"},
		{head + "rules: [{level: All}]", `rules[0].level: Unsupported value: "All"`},
		{head + "rules: [{level: None, omitStages: [Never]}]", `rules[0].omitStages[0]: Invalid value: "Never"`},
		{head + "omitStages: [Never]\nrules: [{level: None}]", `omitStages[0]: Invalid value: "Never"`},
		{head + "rules: [{level: None, nonResourceURLs: [healthz]}]", "must begin with a '/' character"},
		{head + "rules: [{level: None, nonResourceURLs: ['/a*b']}]", "must be the final character"},
		{head + "rules: [{level: None, nonResourceURLs: [/a], namespaces: [b]}]", "cannot apply to both"},
		{head + "rules: [{level: None, resources: [{group: rbac/v1}]}]", "rules[0].resources[0].group"},
		{head + "rules: [{level: None, resources: [{resourceNames: [a]}]}]", "rules[0].resources[0].resourceNames"},
		{head + "rules: 1", "cannot unmarshal"},
	} {
		if _, _, err := ParsePolicy([]byte(tt.text)); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s\n gives %v, want %s", tt.text, err, tt.want)
		}
	}
	_, warnings, err := ParsePolicy([]byte(head + "rules: [{level: None, mood: bad}]"))
	if err != nil || len(warnings) != 1 || !strings.Contains(warnings[0].Error(), "mood") {
		t.Errorf("an unknown field: %v %v", err, warnings)
	}
	_, warnings, err = ParsePolicy([]byte(head + "rules: [{level: None, level: Metadata}]"))
	if err != nil || len(warnings) != 1 || !strings.Contains(warnings[0].Error(), `key "level" already set in map`) {
		t.Errorf("a duplicate field: %v %v", err, warnings)
	}
}
