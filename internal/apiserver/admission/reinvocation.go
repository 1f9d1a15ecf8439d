package admission

// reinvocation is the state of the second run of the mutating plugins.
type reinvocation struct {
	requested, active bool
	states            map[string]any
}

// RequestReinvocation makes the mutating plugins run a second time. A plugin calls it when it has changed the object in a way that the
// plugins before it could not expect. During the second run it has no effect.
func (a *Attributes) RequestReinvocation() { a.reinvocation.requested = true }

// IsReinvocation reports whether this is the second run of the mutating plugins.
func (a *Attributes) IsReinvocation() bool { return a.reinvocation.active }

// PluginState is what the plugin has kept for the second run with SetPluginState, or nil.
func (a *Attributes) PluginState(plugin string) any { return a.reinvocation.states[plugin] }

// SetPluginState keeps a value of the plugin for the second run.
func (a *Attributes) SetPluginState(plugin string, state any) {
	if a.reinvocation.states == nil {
		a.reinvocation.states = map[string]any{}
	}
	a.reinvocation.states[plugin] = state
}
