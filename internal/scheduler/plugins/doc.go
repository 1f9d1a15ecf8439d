// Package plugins has the scheduler's plugins, one file for each, named as upstream names them. Registry lists them in order.
//
// A plugin reads the pod once and returns a Filter or a Scorer, whose functions are then called for each node. Plugins keep no state:
// all state is in the snapshot. PodTopologySpread and InterPodAffinity, which depend on all nodes at once, return a state instead
// (SpreadState, AffinityState) that filters and scores lists of nodes. Hints say which events may make a rejected pod schedulable.
// A Profile arranges plugins by extension point for one scheduler name.
package plugins
