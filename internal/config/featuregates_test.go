package config

import "testing"

func TestFeatureGates(t *testing.T) {
	for _, test := range []struct {
		name, value string
		want        string // substring of the error; empty: valid
	}{
		{"default", "APIResponseCompression=true", ""},
		{"of the component", "kube:AllAlpha=false, kube:AllBeta=false", ""},
		{"switched", "ComponentFlagz=false,ComponentStatusz=false", ""},
		{"not switchable", "APIResponseCompression=false", "cannot set feature gate APIResponseCompression to false: skiff supports only its default, true"},
		{"all alpha features", "AllAlpha=true", "cannot set feature gate AllAlpha to true: skiff supports only its default, false"},
		{"unknown", "Teleportation=true", "unrecognized feature gate: Teleportation"},
		{"unknown component", "wardle:X=true", "component not registered: wardle"},
		{"without value", "AllAlpha", "missing bool value for AllAlpha"},
		{"not a bool", "AllAlpha=maybe", "invalid value of AllAlpha=maybe, err: "},
		{"locked", "CPUManagerPolicyOptions=false", "cannot set feature gate CPUManagerPolicyOptions to false, feature is locked to true"},
		{"locked to this value", "CPUManagerPolicyOptions=true", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := DefaultAPIServer()
			checkError(t, parse(&c, "--feature-gates="+test.value), test.want)
		})
	}
	c := DefaultAPIServer()
	if err := parse(&c, "--feature-gates=ComponentFlagz=false", "--feature-gates=AllAlpha=false"); err != nil {
		t.Fatal(err)
	}
	if c.FeatureGates.Enabled(GateComponentFlagz) || !c.FeatureGates.Enabled(GateComponentStatusz) || len(c.FeatureGates) != 2 {
		t.Errorf("gates %v", c.FeatureGates)
	}
	for _, name := range switchableGates {
		if _, ok := featureGates()[name]; !ok {
			t.Errorf("%s is not a gate of this release", name)
		}
	}
}
